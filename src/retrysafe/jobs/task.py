"""A task behind the fence: its name, what makes two jobs the same, and how one is run once.

A redelivery of what is done is a replay. What raised runs again when the queue tries it again. What another worker is
at raises InProgress, which each adapter turns into "later". What a dead worker held is free when its lease lapses,
and runs again if the task is repeatable.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from retrysafe.core.keys import Key, Template
from retrysafe.core.records import Answer, Record
from retrysafe.engine import arguments, codecs
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.codecs import Codec, JsonCodec
from retrysafe.engine.guard import Ended, Task, Unstorable
from retrysafe.engine.once import check_names, drop_parameter
from retrysafe.errors import InProgress, OutcomeUnknown, ResultNotStorable, StoredFailure, UsageError
from retrysafe.jobs.enqueue_flow import release_for_own_sender
from retrysafe.jobs.fingerprints import fingerprint_call
from retrysafe.jobs.ids import job_id
from retrysafe.jobs.job_context import RunningJob, set_current_job
from retrysafe.policy import DAY, Policy

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

JOB = Policy(failures="release", abandoned="rerun", busy="conflict", retention=30 * DAY)
"""30 days: longer than any queue here redelivers, retries or keeps a result by default, and than people take to ask."""

BUSY_PAUSES_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds between looks at a busy job before the queue is asked to come back later: whoever enqueued it may just be
noting that it is sent."""

MAX_ATTEMPTS = 10
"""After so many attempts a job that dies with its worker is not begun again. A worker that was killed by a deployment,
or ran out of memory, is not the job's fault, and that happens a few times; ten workers in a row are."""

TX_ARGUMENT = "tx"


class AttemptsExhausted(Exception):
    """It was begun so often that whoever comes next must not leave it to be begun again."""


@dataclass(frozen=True)
class FencedTask:
    """One task function. Made by `QueueAdapter.fence` or an adapter's `task`."""

    safe: RetrySafe
    scope: str
    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    """As the queue sees it: without the context and the transaction."""
    policy: Policy
    codec: Codec = field(default_factory=JsonCodec)
    template: Template | None = None
    ignore: frozenset[str] = frozenset()
    tx: Any = None
    context: bool = False
    """Whether the function wants the queue's own context as its first argument."""
    max_attempts: int | None = MAX_ATTEMPTS
    """After so many attempts it is run as if it were not repeatable: if its worker dies again, a person has to look.
    One that raises is tried again by its queue's own rules, however often. None: for ever."""

    # Which job ------------------------------------------------------------------------------

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str = "") -> str:
        """The job's id: of the key the caller chose, or of the task's template."""
        if self.template is None:
            if not key:
                raise UsageError(
                    f"a job of {self.name} needs a key, which says what must not happen twice: "
                    "enqueue(task, args, key='charge-order-7'), or declare the task with key='charge-{order_id}'"
                )
            return job_id(key)
        given = arguments.bind_arguments(self.signature, args, kwargs)
        filled = self.template.fill({name: arguments.describe_legacy(given[name]) for name in self.template.fields})
        if key and job_id(key) not in (job_id(filled), filled):
            raise UsageError(f"key={key!r}: {self.name} makes its keys by {self.template.text!r}; leave key= out")
        return job_id(filled)

    def build_task(self, id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
        key = Key(id, self.scope, "job")
        fingerprint = fingerprint_call(self.name, self.signature, args, kwargs, self.ignore)
        return self.safe.build_task(key, self.name, fingerprint, self.policy)

    # Running it -----------------------------------------------------------------------------

    def run(self, delivery: str, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any = None) -> Any:
        """Run the job the queue calls `delivery`, or give its stored result. From a thread; an async function runs
        on the background loop. Raises InProgress while another worker is at it."""
        if self.is_async:
            return wait_for(self.arun(delivery, args, kwargs, context))
        task, work = self._prepare_call(delivery, args, kwargs, context)
        aside = release_for_own_sender(task.key.id(task.namespace))
        if aside is not None:
            self.safe.execute(aside)
        for pause in BUSY_PAUSES_SECONDS:
            try:
                return self.result(self._run_guarded(task, work))
            except InProgress:
                time.sleep(pause)
        return self.result(self._run_guarded(task, work))

    async def arun(self, delivery: str, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any = None) -> Any:
        """The same on an event loop; a plain function runs in a thread."""
        import asyncio

        if not self.is_async:
            return await asyncio.to_thread(self.run, delivery, args, kwargs, context)
        task, work = self._prepare_call(delivery, args, kwargs, context)
        aside = release_for_own_sender(task.key.id(task.namespace))
        if aside is not None:
            await self.safe.aexecute(aside)
        for pause in BUSY_PAUSES_SECONDS:
            try:
                return self.result(await self._arun_guarded(task, work))
            except InProgress:
                await asyncio.sleep(pause)
        return self.result(await self._arun_guarded(task, work))

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def _prepare_call(
        self, delivery: str, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> tuple[Task, GuardedCall]:
        id = self.key_of(args, kwargs) if self.template is not None else job_id(delivery)
        given = arguments.bind_arguments(self.signature, args, kwargs)
        return self.build_task(id, args, kwargs), GuardedCall(self, id, given, context)

    def _run_guarded(self, task: Task, work: GuardedCall) -> Ended:
        if self.tx is None:
            try:
                return self.safe.guard(task, work)
            except AttemptsExhausted:
                return self.safe.guard(without_rerun(task), work.without_limit())
            except OutcomeUnknown as unknown:
                raise self._explain_unknown(unknown) from None
        from retrysafe.transactions.run import perform

        return perform(self.safe, task, self.tx, work)

    async def _arun_guarded(self, task: Task, work: GuardedCall) -> Ended:
        if self.tx is None:
            try:
                return await self.safe.aguard(task, work)
            except AttemptsExhausted:
                return await self.safe.aguard(without_rerun(task), work.without_limit())
            except OutcomeUnknown as unknown:
                raise self._explain_unknown(unknown) from None
        from retrysafe.transactions.run import aperform

        return await aperform(self.safe, task, self.tx, work)

    def _explain_unknown(self, unknown: OutcomeUnknown) -> OutcomeUnknown:
        if self.policy.abandoned == "rerun":
            unknown.add_note(
                f"retrysafe: {self.name} is begun again when its worker dies, but not for ever: after max_attempts="
                f"{self.max_attempts} attempts its worker died once more, or was stopped. Find out why (`retrysafe "
                "keys show` shows its record); to have it done after all, enqueue it under another key"
            )
        return unknown

    def result(self, ended: Ended) -> Any:
        return self.decode_answer(ended.answer, ended.record.id) if ended.replayed else ended.result

    def decode_answer(self, answer: Answer, record_id: bytes) -> Any:
        """The result a stored answer stands for. Raises StoredFailure where the failure was the result."""
        if answer.status == codecs.RAISED_STATUS:
            told = codecs.decode_answer(JsonCodec(), answer, record_id)
            raise StoredFailure(self.name, told["type"], told["message"])
        return codecs.decode_answer(self.codec, answer, record_id)


def without_rerun(task: Task) -> Task:
    """The same job, claimed so that it is not begun again if this worker dies too."""
    return replace(task, policy=task.policy.replace(abandoned="uncertain"))


class GuardedCall:
    """One delivery, as the guard's work and as the transaction's."""

    __slots__ = ("_context", "_given", "_id", "_limit", "_task")

    def __init__(self, task: FencedTask, id: str, given: dict[str, Any], context: Any) -> None:
        self._task = task
        self._id = id
        self._given = given
        self._context = context
        self._limit = task.max_attempts if task.policy.abandoned == "rerun" else None

    def without_limit(self) -> GuardedCall:
        """Without a limit: it was seen to."""
        same = GuardedCall(self._task, self._id, self._given, self._context)
        same._limit = None
        return same

    def call(self, given: Any) -> Any:
        """The guard gives its record, a transaction its handle."""
        record = given if isinstance(given, Record) else None
        if record is not None and self._limit is not None and record.attempt > self._limit:
            raise AttemptsExhausted(f"this is attempt {record.attempt} of {self._id}")
        job = RunningJob(self._id, self._task.name, record.attempt if record else 0, record.run if record else b"")
        call = self._bind_arguments(given)
        if self._task.is_async:
            return self._await_function(job, call)
        with set_current_job(job):
            return self._task.function(*call.args, **call.kwargs)

    async def _await_function(self, job: RunningJob, call: inspect.BoundArguments) -> Any:
        with set_current_job(job):
            return await self._task.function(*call.args, **call.kwargs)

    def _bind_arguments(self, handle: Any) -> inspect.BoundArguments:
        """The job's arguments with the queue's context and the transaction in their places."""
        full = inspect.signature(self._task.function)
        given = dict(self._given)
        if self._task.context:
            given[next(iter(full.parameters))] = self._context
        if self._task.tx is not None:
            given[TX_ARGUMENT] = handle
        return inspect.BoundArguments(full, {name: given[name] for name in full.parameters if name in given})

    def answer(self, result: Any) -> Answer:
        try:
            return codecs.encode_result(self._task.codec, result)
        except Exception as error:  # whatever a codec raises: the work is done and must not be done again
            lost = self._task.tx is not None
            raise Unstorable(ResultNotStorable(self._task.name, str(error), rolled_back=lost)) from error

    def failure(self, error: Exception) -> Answer:
        return codecs.encode_exception(error)


# Declaring one ------------------------------------------------------------------------------------


def declare_task(
    safe: RetrySafe,
    scope: str,
    function: Callable[..., Any],
    *,
    name: str,
    key: str,
    ignore: Iterable[str],
    repeatable: bool,
    tx: Any,
    context: bool,
    policy: Policy,
    codec: Codec | None,
    max_attempts: int | None = MAX_ATTEMPTS,
    control: tuple[type[BaseException], ...] = (),
) -> FencedTask:
    """Check what a task was declared with. `control`: exceptions by which a task talks to its queue; never final."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function.__qualname__} is a generator, which no queue can run once: return a list")
    shown = signature_of(function, context=context, tx=tx is not None, task=name)
    ignored = check_names("ignore", ignore, shown, name)
    template = Template.parse(key) if key else None
    if template is not None:
        check_names("key", template.fields, shown, name)
    limit = check_limit(max_attempts, name)
    chosen = policy if repeatable else policy.replace(abandoned="uncertain")
    if chosen.failures != "release":
        chosen = chosen.replace(failures=functools.partial(_is_final, chosen, (*control, AttemptsExhausted)))
    return FencedTask(
        safe, scope, name, function, shown, chosen, codec or JsonCodec(), template, ignored, tx, context, limit
    )


def check_limit(limit: object, task: str) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise UsageError(f"{task}: max_attempts={limit!r}: give a whole number, 1 or more, or None for no limit")


def _is_final(
    policy: Policy, control: tuple[type[BaseException], ...], status: int, error: BaseException | None
) -> bool:
    return not isinstance(error, control) and policy.final(status, error)


def signature_of(function: Callable[..., Any], *, context: bool, tx: bool, task: str) -> inspect.Signature:
    """What whoever enqueues it passes."""
    full = inspect.signature(function)
    parameters = list(full.parameters.values())
    if context:
        if not parameters:
            raise UsageError(f"context=True, but {task} takes no argument to put the queue's context in")
        full = full.replace(parameters=parameters[1:])
    if not tx:
        return full
    if TX_ARGUMENT not in full.parameters or full.parameters[TX_ARGUMENT].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UsageError(f"{task} was declared with tx=, but its function has no argument named 'tx'")
    return drop_parameter(full, TX_ARGUMENT, task)
