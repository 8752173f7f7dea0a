"""Declaring an operation: its steps and its body, `def` or `async def`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from retrysafe.core import values
from retrysafe.core.fingerprint import fingerprint_text
from retrysafe.core.keys import Key
from retrysafe.core.moves import is_outcome_unknown
from retrysafe.core.ops import Claim, Lookup
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.times import duration_to_micros
from retrysafe.engine import arguments, typed
from retrysafe.engine.clock import clock
from retrysafe.engine.effects import Flow
from retrysafe.engine.guard import Ended, Task
from retrysafe.engine.heartbeat import current_lease
from retrysafe.engine.resolving import resolve_uncertain
from retrysafe.errors import ArgumentError, OperationChanged, OperationError, UsageError
from retrysafe.operations import flow, perform, run, undoing
from retrysafe.operations.announcing import START, Habits, announce_in, leaves_no_trace
from retrysafe.operations.arguments_digest import digest_arguments
from retrysafe.operations.foreign import run_foreign_step
from retrysafe.operations.journal import BY_CALL, BY_PLACE, OperationJournal
from retrysafe.operations.local import run_local_step
from retrysafe.operations.run import OperationRun, StepFlow, run_step
from retrysafe.operations.steps import DAY, Step, read_type_hints
from retrysafe.operations.submission import Accepted, accept, is_submitted
from retrysafe.operations.tx_binding import TxBinding, bind_tx
from retrysafe.policy import FOREVER, Policy
from retrysafe.transactions import staging

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 10
RENEWAL_MARGIN_SECONDS = 5.0
"""Seconds of a lease that are left for the renewal before a call."""


class Operation:
    """A set of declared steps, and a body of ordinary Python that calls them. Call it with `key=`."""

    def __init__(
        self, safe: RetrySafe, name: str, version: int, policy: Policy | None, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        if not name or len(name) > 200 or "@" in name:
            raise OperationError(f"operation({name!r}): give a name of 1 to 200 characters without '@'")
        if not isinstance(version, int) or version < 1:
            raise OperationError(f"operation({name!r}, version={version!r}): versions are 1, 2, 3 …")
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise OperationError(f"operation({name!r}, max_attempts={max_attempts!r}): give at least one attempt")
        self.safe = safe
        self.name = name
        self.version = version
        self.policy = policy or Policy(failures="release", retention=FOREVER)
        self.max_attempts = max_attempts
        self.steps: dict[str, Step] = {}
        self.habits = Habits()
        self.unable: Callable[..., str] | None = None
        """Asked by the worker with the input, before it takes a run: why this code cannot go on with it, or nothing."""
        self._body: Callable[..., Any] | None = None
        self._tx_binding: TxBinding | None = None

    @property
    def target(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._body)

    @property
    def lease(self) -> float:
        """Longer than the longest call: it begins only if it would be over before the lease is, so nobody takes over
        while a request may still be under way."""
        calls = (step.timeout + RENEWAL_MARGIN_SECONDS for step in self.steps.values() if step.kind == "foreign")
        return max(self.policy.lease, *calls, 0.0)

    @property
    def rule(self) -> int:
        """What the calls of a new run are numbered by (journal.py). A run that was begun keeps its own."""
        return BY_CALL if self.safe.forms == "current" else BY_PLACE

    @property
    def tx_binding(self) -> TxBinding:
        if self._tx_binding is None:
            self._tx_binding = bind_tx(self.safe)
        return self._tx_binding

    def clock(self) -> float:
        """This process's own clock, by which it counts what has passed since it asked the store."""
        return clock()

    # Declaring ------------------------------------------------------------------------------

    @overload
    def local(self, function: Callable[Concatenate[Any, P], R], /) -> Callable[P, R]: ...
    @overload
    def local(self, /, **options: Any) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]: ...
    def local(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """A step in one transaction of yours: `def step(tx, …)`. Options: `undo`, `tries`, `backoff`, `final`."""
        return self._declare("local", function, options)

    @overload
    def foreign(self, function: Callable[..., R], /) -> Callable[..., R]: ...
    @overload
    def foreign(self, /, **options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]: ...
    def foreign(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """A step that calls another system: `def step(…, *, key)`.

        `timeout` seconds; `key_life`: how long the other system remembers a key; `find(…, key)`: ask it what happened;
        `undo(…, result, key)`; `repeatable=False` when it takes no keys; `tries` per attempt, `backoff` seconds between
        them; `final`: errors that no further try would change; `deadline` seconds after which it is not sent again.
        """
        options.setdefault("key_life", DAY)
        return self._declare("foreign", function, options)

    def body(self, function: F) -> Operation:
        """The story: ordinary Python that calls the steps. Run again from the top after a crash, so what it decides
        must come from its input and from what its steps returned."""
        if self._body is not None:
            raise OperationError(f"operation {self.name!r} has a body already: {self._body.__qualname__}")
        self._body = function
        for step in self.steps.values():
            self._check_sync_async(step)
        functools.update_wrapper(cast("Any", self), function)
        return self

    def _declare(self, kind: Any, function: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
        def declare(step_function: Callable[..., Any]) -> Callable[..., Any]:
            name = step_function.__name__
            if name in self.steps:
                raise OperationError(f"operation {self.name!r} has a step {name!r} already")
            try:
                step = Step(name, kind, step_function, **options)
            except TypeError as error:
                raise OperationError(f"step {name!r}: {error}") from None
            self._check_sync_async(step)
            self.steps[name] = step
            return self._build_step_callable(step)

        return declare if function is None else declare(function)

    def _check_sync_async(self, step: Step) -> None:
        if self._body is not None and step.is_async != inspect.iscoroutinefunction(self._body):
            raise OperationError(f"step {step.name!r} and the body of {self.name!r} must both be async, or both not")
        for what, helper in (("undo", step.undo), ("find", step.find)):
            if helper is not None and inspect.iscoroutinefunction(helper) and not step.is_async:
                raise OperationError(
                    f"the {what} of step {step.name!r} is async, but the step is not: nobody awaits it"
                )

    def _build_step_callable(self, step: Step) -> Callable[..., Any]:
        """What the body calls: looks the result up, or runs the step's story."""
        story: StepFlow = run_local_step if step.kind == "local" else run_foreign_step
        if step.is_async:

            async def run_step_async(attempt: OperationRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                attempt.unawaited.remove(step.name)
                return await perform.run_async(self.safe, run_step(attempt, step, story, args, kwargs))

            @functools.wraps(step.function)
            def call_async(*args: Any, **kwargs: Any) -> Any:
                attempt = current_run(self, step)
                attempt.unawaited.append(step.name)
                return run_step_async(attempt, args, kwargs)

            return call_async

        @functools.wraps(step.function)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            return perform.run_sync(self.safe, run_step(current_run(self, step), step, story, args, kwargs))

        return call_sync

    # Running --------------------------------------------------------------------------------

    def __call__(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """The Answer: of this run, or the stored one. Awaitable if the body is async. With `start="worker"` it is
        Accepted until the worker has finished it."""
        if inspect.iscoroutinefunction(self._require_body()):
            return self._await_answer(args, key, kwargs)
        return _to_answer(self.start(*args, key=key, **kwargs))

    async def _await_answer(self, args: tuple[Any, ...], key: str | Key, kwargs: dict[str, Any]) -> Answer | Accepted:
        return _to_answer(await self.start(*args, key=key, **kwargs))

    def start(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """Like calling it, but tells also whether it was a replay: an `Ended`."""
        if self.policy.start == "worker":
            return self.submit(*args, key=key, **kwargs)
        task, claim = self.prepare(args, kwargs, key)
        return self._drive(flow.start(self, task, claim, self.safe.events))

    def submit(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """Commit the claim with its input and let the worker run it: Accepted, or an `Ended` if it was done before."""
        task, claim = self.prepare(args, kwargs, key)
        return self._drive(accept(task, claim, self.safe.events, self))

    def resume(self, record: Record, *, fresh: bool = False) -> Any:
        """Take over a record that nobody owns, and go on from its recovery point: what the worker does. The run that
        the record shows and no other: one that is over by now is not begun again. `fresh`: it was submitted, and nobody
        has run it yet; it is seen in the record, too."""
        return self._drive(self._resume_flow(record, fresh or is_submitted(record)))

    def resume_id(self, record_id: str | bytes, because: str = "") -> Any:
        """The same, for a record known by its id (hex): what a person does. Where nobody knows how a step ended, or
        whether it was sent, `because` says what showed that it did not happen; without it such a run is left alone."""
        return self._drive(self._resume_id_flow(parse_record_id(record_id), because))

    def undo_id(self, record_id: str | bytes, because: str) -> Any:
        """Undo one run: every step that began, in reverse. What a person does, also where nobody knows how a step
        ended: their undos are told so."""
        if not because.strip():
            raise UsageError("undo_id(..., because=''): say why it is undone; it stands in its ledger")
        return self._drive(self._undo_flow(parse_record_id(record_id), because))

    def _undo_flow(self, record_id: bytes, because: str) -> Flow[Ended]:
        record, now = yield from self._look_up_own(record_id)
        if is_outcome_unknown(record, now):
            yield from resolve_uncertain(record_id, happened=False, answer=None, because=because)
        task, claim = self._build_resume_claim(record)
        fresh = is_submitted(record)
        return (yield from flow.undo_run(self, task, claim, self.safe.events, because, fresh=fresh))

    def why_unable(self, record: Record) -> str:
        """Why this code cannot go on with a run, so that it is left for other code; empty if it can try."""
        if self.unable is None:
            return ""
        try:
            given = self._decode_arguments(record.input.decode())
        except Exception:
            return ""  # whatever is wrong with its input is found out, and written down, by its attempt
        return self.unable(**given)

    def give_up(self, record: Record) -> Any:
        """Make a dead letter of a record whose attempts all died without a word: what the worker does (I21)."""
        task, claim = self._build_resume_claim(record)
        return self._drive(flow.give_up(self, task, claim, self.safe.events))

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str | Key) -> tuple[Task, Claim]:
        given = arguments.bind_arguments(inspect.signature(self._require_body()), args, kwargs)
        # The name is part of it: two operations called with one Key and equal arguments are two requests.
        fingerprint = arguments.fingerprint_call(self.name, {"@operation": self.name, **given}, frozenset())
        whose = key if isinstance(key, Key) else Key(key, self.name, "operation")
        input_ = self._encode_input(given)
        # Over HTTP the request is what the client repeats, byte for byte, however this code reads it.
        asked = () if whose.request is None else (fingerprint_for_request(self.name, whose.request),)
        first, *others = (*asked, fingerprint) if self.safe.forms == "current" else (fingerprint, *asked)
        task = self.safe.build_task(whose, self.target, first, self.policy, input=input_, alternatives=others)
        claim = self._announcing(self._build_claim(task))
        self._check_unclaimed(claim)
        return task, claim

    def _announcing(self, claim: Claim) -> Claim:
        """With the first step announced in the run's number, where it is foreseen."""
        first = self.steps.get(self.habits.foresee(START))
        if first is None or not leaves_no_trace(first, self.tx_binding.kind):
            return claim
        return replace(claim, run=announce_in(claim.run, first.name))

    def is_same_request(self, record: Record, claim: Claim) -> bool:
        """Whether a record whose fingerprint is another stands for this call all the same: its arguments, read by this
        code, are those of the call, however the code that stored them called their types and defaulted their fields.
        Raises OperationChanged where this code cannot read them: a client must not be told to take another key."""
        if record.target.partition("@")[0] != self.name or not record.input:
            return False
        stored, given = self._read_input(record.input), self._read_input(claim.input)
        told = digest_arguments(self._require_body(), stored)
        return told != "" and told == digest_arguments(self._require_body(), given)

    def _check_unclaimed(self, claim: Claim) -> None:
        """Whoever runs us must not hold the key itself: it would be told that its own claim is another request."""
        held = current_lease()
        if held is not None and held.id == claim.id:
            raise OperationError(
                f"operation {self.name!r} was given the key {claim.key!r}, which is claimed already by what runs it: a "
                "route or function has one strength and one record. Protect the route with strength='operation', so "
                "that only the operation claims the key; inside another operation's step, use that step's key"
            )

    def _encode_input(self, given: dict[str, Any]) -> bytes:
        """The arguments as they are stored; read back once here, before anything is claimed in their name."""
        try:
            text = typed.dump(given, typed.secrets_rule(self.safe.sealed))
            self._decode_arguments(text)
        except OperationError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"the arguments of operation {self.name!r} cannot be stored and read back: {error}. Pass plain data, "
                "or values of annotated dataclasses, pydantic models, structs"
            ) from error
        return text.encode()

    def _decode_arguments(self, text: str) -> dict[str, Any]:
        known = read_type_hints(self._require_body())
        return {name: typed.from_plain(value, known.get(name)) for name, value in typed.load(text, None).items()}

    def _resume_id_flow(self, record_id: bytes, because: str) -> Flow[Ended]:
        record, now = yield from self._look_up_own(record_id)
        if because.strip() and is_outcome_unknown(record, now):
            yield from resolve_uncertain(record_id, happened=False, answer=None, because=because)
        return (yield from self._resume_flow(record, is_submitted(record), not_sent=bool(because.strip())))

    def _look_up_own(self, record_id: bytes) -> Flow[tuple[Record, int]]:
        """The record and the store's time. A record of another application is none (I34)."""
        seen = yield Lookup(record_id)
        if seen.record is None or seen.record.namespace != self.safe.namespace:
            raise UsageError(
                f"there is no record {record_id.hex()!r} of the application {self.safe.namespace!r}; "
                "`retrysafe operations MODULE:SAFE --list` shows their ids"
            )
        return seen.record, seen.now

    def _resume_flow(self, record: Record, fresh: bool, not_sent: bool = False) -> Flow[Ended]:
        task, claim = self._build_resume_claim(record)
        return (yield from flow.start(self, task, claim, self.safe.events, fresh=fresh, not_sent=not_sent))

    def _build_resume_claim(self, record: Record) -> tuple[Task, Claim]:
        key = Key(record.key, record.scope, cast("Any", record.kind))
        task = Task(key, record.namespace, record.target, record.fingerprint, self.policy)
        return task, replace(self._build_claim(task), resumes=record.run)

    def _build_claim(self, task: Task) -> Claim:
        return replace(task.build_claim(), on_lapse="resume", lease=duration_to_micros(self.lease))

    def call_body(self, attempt: OperationRun, input_: bytes) -> Any:
        """The body, with the input as it was typed. In the colour it was written in."""
        body, given = self._require_body(), self._read_input(input_)
        token = run.current.set(attempt)
        try:
            result = body(**given)
        finally:
            run.current.reset(token)
        return _await_body(attempt, result) if inspect.isawaitable(result) else result

    def _read_input(self, input_: bytes) -> dict[str, Any]:
        """The stored arguments. What this code cannot read is left to the code that can: it is no failure of the
        operation, and nothing may be undone because of it."""
        try:
            given = self._decode_arguments(input_.decode())
            inspect.signature(self._require_body()).bind(**given)
        except OperationError:
            raise
        except Exception as error:
            raise OperationChanged(
                self.target, f"its input cannot be read by this code ({type(error).__name__}: {str(error)[:200]})"
            ) from error
        return given

    def is_exhausted(self, record: Record) -> bool:
        """Whether a record that nobody owns has failed or died as often as it may: what the worker asks (I21)."""
        try:
            journal = OperationJournal.decode(record.progress)
        except (ValueError, TypeError, KeyError):
            return False  # other code's: left alone
        return not is_submitted(record) and journal.count_failures(record.attempt) >= self.max_attempts

    def call_undoing(self, attempt: OperationRun) -> Any:
        return self._drive(undoing.undo_all(attempt))

    def _require_body(self) -> Callable[..., Any]:
        if self._body is None:
            raise OperationError(f"operation {self.name!r} has no body yet: decorate one with @{self.name}.body")
        return self._body

    def _drive(self, story: Any) -> Any:
        open_step = staging.current.get()
        if open_step is not None and open_step.local:
            raise OperationError(
                f"operation {self.name!r} was called inside a local step, whose transaction is open; call it from a "
                "foreign step, with that step's key"
            )
        if inspect.iscoroutinefunction(self._require_body()):
            return perform.run_async(self.safe, story)
        return perform.run_sync(self.safe, story)


def fingerprint_for_request(name: str, request: Fingerprint) -> Fingerprint:
    """An operation's fingerprint where it is asked for over HTTP: its name and the request's own."""
    return fingerprint_text("op1", values.dumps([name, str(request)]))


async def _await_body(attempt: OperationRun, result: Any) -> Any:
    """An async body runs when it is awaited: that is when its steps must find the attempt."""
    token = run.current.set(attempt)
    try:
        return await result
    finally:
        run.current.reset(token)


def _to_answer(started: Ended | Accepted) -> Answer | Accepted:
    return started if isinstance(started, Accepted) else started.answer


def parse_record_id(given: str | bytes) -> bytes:
    try:
        found = given if isinstance(given, bytes) else bytes.fromhex(given)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise UsageError(f"{given!r} is not a record's id: give its 64 hex digits")
    return found


def current_run(operation: Operation, step: Step) -> OperationRun:
    attempt = run.current.get()
    if attempt is None or attempt.steps is not operation.steps:
        raise OperationError(
            f"step {step.name!r} was called outside the body of {operation.name!r}; call the operation instead"
        )
    return attempt
