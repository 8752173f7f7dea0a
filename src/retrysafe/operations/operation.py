"""Declaring an operation: its steps and its body, `def` or `async def`."""

from __future__ import annotations

import functools
import inspect
import time
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from retrysafe.core.keys import Key
from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Record
from retrysafe.engine import arguments, typed
from retrysafe.engine.guard import Ended, Task
from retrysafe.errors import OperationError
from retrysafe.operations import flow, perform, run
from retrysafe.operations.run import Run
from retrysafe.operations.steps import DAY, Step
from retrysafe.policy import FOREVER, Policy

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 10


class Operation:
    """A set of declared steps, and a body of ordinary Python that calls them. Call it with `key=`."""

    def __init__(
        self, safe: RetrySafe, name: str, version: int, policy: Policy | None, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        if not name or len(name) > 200 or "@" in name:
            raise OperationError(f"operation({name!r}): give a name of 1 to 200 characters without '@'")
        if not isinstance(version, int) or version < 1:
            raise OperationError(f"operation({name!r}, version={version!r}): versions are 1, 2, 3 …")
        self.safe = safe
        self.name = name
        self.version = version
        self.policy = policy or Policy(failures="release", retention=FOREVER)
        self.max_attempts = max_attempts
        self.steps: dict[str, Step] = {}
        self._body: Callable[..., Any] | None = None

    @property
    def target(self) -> str:
        return f"{self.name}@{self.version}"

    def clock(self) -> float:
        return time.time()

    # Declaring ------------------------------------------------------------------------------

    @overload
    def local(self, function: Callable[Concatenate[Any, P], R], /) -> Callable[P, R]: ...
    @overload
    def local(self, /, **options: Any) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]: ...
    def local(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """A step in one transaction of yours: `def step(tx, …)`. Options: `undo`, `tries`."""
        return self._declare("local", function, options)

    @overload
    def foreign(self, function: Callable[..., R], /) -> Callable[..., R]: ...
    @overload
    def foreign(self, /, **options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]: ...
    def foreign(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """A step that calls another system: `def step(…, *, key)`.

        `timeout` seconds; `key_life`: how long the other system remembers a key; `find(…, key)`: ask it what happened;
        `undo(…, result, key)`; `repeatable=False` when it takes no keys; `tries` per attempt.
        """
        options.setdefault("key_life", DAY)
        return self._declare("foreign", function, options)

    def body(self, function: F) -> Operation:
        """The story: ordinary Python that calls the steps. Run again from the top after a crash."""
        if self._body is not None:
            raise OperationError(f"operation {self.name!r} has a body already: {self._body.__qualname__}")
        colour = inspect.iscoroutinefunction(function)
        for step in self.steps.values():
            if inspect.iscoroutinefunction(step.function) != colour:
                raise OperationError(
                    f"step {step.name!r} and the body of {self.name!r} must both be async, or both not"
                )
        self._body = function
        functools.update_wrapper(cast("Any", self), function)
        return self

    def _declare(self, kind: Any, function: F | None, options: dict[str, Any]) -> Any:
        def declare(step_function: F) -> F:
            name = step_function.__name__
            if name in self.steps:
                raise OperationError(f"operation {self.name!r} has a step {name!r} already")
            try:
                step = Step(name, kind, step_function, **options)
            except TypeError as error:
                raise OperationError(f"step {name!r}: {error}") from None
            self.steps[name] = step
            return cast("F", self._callable(step))

        return declare if function is None else declare(function)

    def _callable(self, step: Step) -> Callable[..., Any]:
        """What the body calls: looks the result up, or runs the step's story."""
        story = run.local if step.kind == "local" else run.foreign
        if inspect.iscoroutinefunction(step.function):

            @functools.wraps(step.function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return await perform.run_async(self.safe, story(running(step), step, args, kwargs))

            return awaited

        @functools.wraps(step.function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return perform.run_sync(self.safe, story(running(step), step, args, kwargs))

        return called

    # Running --------------------------------------------------------------------------------

    def __call__(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """The Answer: of this run, or the stored one. Awaitable if the body is async."""
        started = self.start(*args, key=key, **kwargs)
        if inspect.isawaitable(started):
            return _answer_of(started)
        return started.answer

    def start(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """Like calling it, but tells also whether it was a replay: an `Ended`."""
        task, claim = self.prepare(args, kwargs, key)
        return self._drive(flow.start(self, task, claim, self.safe.events))

    def resume(self, record: Record) -> Any:
        """Take over a record that nobody owns, and go on from its recovery point: what the worker does."""
        task, claim = self._again(record)
        return self._drive(flow.start(self, task, claim, self.safe.events))

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str | Key) -> tuple[Task, Claim]:
        given = arguments.bound(inspect.signature(self._needed_body()), args, kwargs)
        fingerprint = arguments.fingerprint_of(self.name, given, frozenset())
        whose = key if isinstance(key, Key) else Key(key, self.name, "operation")
        input_ = typed.dump({name: typed.to_plain(value) for name, value in given.items()}).encode()
        task = Task(whose, self.safe.namespace, self.target, fingerprint, self.policy, input_)
        return task, self._claim(task)

    def _again(self, record: Record) -> tuple[Task, Claim]:
        key = Key(record.key, record.scope, cast("Any", record.kind))
        task = Task(key, record.namespace, record.target, record.fingerprint, self.policy, record.input)
        return task, self._claim(task)

    def _claim(self, task: Task) -> Claim:
        return replace(task.claim(), on_lapse="resume")

    def call_body(self, attempt: Run, input_: bytes) -> Any:
        """The body, with the input as it was typed. In the colour it was written in."""
        body = self._needed_body()
        hints = typing.get_type_hints(body)
        plain = typed.load(input_.decode(), None)
        given = {name: typed.from_plain(value, hints.get(name)) for name, value in plain.items()}
        token = run.current.set(attempt)
        try:
            result = body(**given)
        finally:
            run.current.reset(token)
        return _inside(attempt, result) if inspect.isawaitable(result) else result

    def _needed_body(self) -> Callable[..., Any]:
        if self._body is None:
            raise OperationError(f"operation {self.name!r} has no body yet: decorate one with @{self.name}.body")
        return self._body

    def _drive(self, story: Any) -> Any:
        if inspect.iscoroutinefunction(self._needed_body()):
            return perform.run_async(self.safe, story)
        return perform.run_sync(self.safe, story)


async def _inside(attempt: Run, result: Any) -> Any:
    """An async body runs when it is awaited: that is when its steps must find the attempt."""
    token = run.current.set(attempt)
    try:
        return await result
    finally:
        run.current.reset(token)


async def _answer_of(started: Any) -> Answer:
    ended: Ended = await started
    return ended.answer


def running(step: Step) -> Run:
    attempt = run.current.get()
    if attempt is None:
        raise OperationError(f"step {step.name!r} was called outside its operation's body; call the operation instead")
    return attempt
