"""A task behind the fence: its name, the identity of its jobs, and how a job runs once.

A second delivery of a job that is done is a replay. A job that raised runs again when the queue retries it. A job that
another worker runs raises InProgress, which each adapter turns into a later delivery. The job of a dead worker is free
when its lease lapses, and runs again if the task is repeatable.
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
from retrysafe.engine.guard import Ended, Task
from retrysafe.engine.once import check_names, drop_parameter, encode_answer, read_result
from retrysafe.errors import InProgress, OutcomeUnknown, UsageError
from retrysafe.jobs.enqueue_flow import policy_of_worker, release_for_own_sender
from retrysafe.jobs.fingerprints import fingerprint_job
from retrysafe.jobs.ids import RunningJob, job_id, set_current_job
from retrysafe.policy import DAY, Policy

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

JOB = Policy(failures="release", abandoned="rerun", busy="conflict", retention=30 * DAY)
"""The default policy of jobs. 30 days are longer than any queue here redelivers, retries or keeps a result by default,
and longer than people take to ask for a result."""

BUSY_PAUSES_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""The pauses between looks at a busy job before it goes back to the queue: its sender may be about to note that it was
sent."""

MAX_ATTEMPTS = 10
"""After so many attempts a job is not begun again if its worker dies. A deployment or a lack of memory kills a worker
now and then, and that is not the job's fault. If ten workers in a row die, it is."""

TX_ARGUMENT = "tx"


class AttemptsExhausted(Exception):
    """The job was begun `max_attempts` times: this attempt must be the last one that a dead worker can leave behind."""


@dataclass(frozen=True)
class FencedTask:
    """One task function. Made by `QueueAdapter.fence` or an adapter's `task`."""

    safe: RetrySafe
    scope: str
    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    """The signature that callers use: without the context and the transaction."""
    policy: Policy
    codec: Codec = field(default_factory=JsonCodec)
    template: Template | None = None
    ignore: frozenset[str] = frozenset()
    tx: Any = None
    context: bool = False
    """Whether the function gets the queue's own context as its first argument."""
    max_attempts: int | None = MAX_ATTEMPTS
    """After so many attempts the job runs as if it were not repeatable: if its worker dies again, a person has to
    decide. A job that raises is not affected: its queue retries it by its own rules. None means no limit."""

    # Identity -------------------------------------------------------------------------------

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str = "") -> str:
        """The job's id, from the key that the caller chose or from the task's template."""
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
        fingerprint = fingerprint_job(self.name, self.signature, args, kwargs, self.ignore)
        return self.safe.build_task(key, self.name, fingerprint, self.policy)

    # Running --------------------------------------------------------------------------------

    def run(self, delivery: str, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any = None) -> Any:
        """Run the job that the queue calls `delivery`, or return its stored result. For threads; an async function runs
        on the background loop. Raises InProgress while another worker runs the job."""
        if self.is_async:
            return wait_for(self.arun(delivery, args, kwargs, context))
        task, work = self._prepare_call(delivery, args, kwargs, context)
        release = release_for_own_sender(task.key.id(task.namespace))
        if release is not None:
            self.safe.execute(release)
        for pause in BUSY_PAUSES_SECONDS:
            try:
                return self.read_result(self._run_guarded(task, work))
            except InProgress:
                time.sleep(pause)
        return self.read_result(self._run_guarded(task, work))

    async def arun(self, delivery: str, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any = None) -> Any:
        """`run` on an event loop; a plain function runs in a thread."""
        import asyncio

        if not self.is_async:
            return await asyncio.to_thread(self.run, delivery, args, kwargs, context)
        task, work = self._prepare_call(delivery, args, kwargs, context)
        release = release_for_own_sender(task.key.id(task.namespace))
        if release is not None:
            await self.safe.aexecute(release)
        for pause in BUSY_PAUSES_SECONDS:
            try:
                return self.read_result(await self._arun_guarded(task, work))
            except InProgress:
                await asyncio.sleep(pause)
        return self.read_result(await self._arun_guarded(task, work))

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

    def read_result(self, ended: Ended) -> Any:
        return read_result(self.name, self.codec, ended)


def without_rerun(task: Task) -> Task:
    """The same job, claimed so that it is not begun again if this worker dies too."""
    return replace(task, policy=task.policy.replace(abandoned="uncertain"))


class GuardedCall:
    """One delivery of a job, as work for the guard or the transaction."""

    __slots__ = ("_context", "_given", "_id", "_limit", "_task")

    def __init__(self, task: FencedTask, id: str, given: dict[str, Any], context: Any) -> None:
        self._task = task
        self._id = id
        self._given = given
        self._context = context
        self._limit = task.max_attempts if task.policy.abandoned == "rerun" else None

    def without_limit(self) -> GuardedCall:
        """The same call without the limit of attempts: the task was claimed with `without_rerun`."""
        same = GuardedCall(self._task, self._id, self._given, self._context)
        same._limit = None
        return same

    def call(self, given: Any) -> Any:
        """`given` is the guard's record, or the transaction's handle."""
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
        """The job's arguments, with the queue's context and the transaction's handle added."""
        full = inspect.signature(self._task.function)
        given = dict(self._given)
        if self._task.context:
            given[next(iter(full.parameters))] = self._context
        if self._task.tx is not None:
            given[TX_ARGUMENT] = handle
        return inspect.BoundArguments(full, {name: given[name] for name in full.parameters if name in given})

    def answer(self, result: Any) -> Answer:
        task = self._task
        return encode_answer(task.name, task.codec, result, None, rolled_back=task.tx is not None)

    def failure(self, error: Exception) -> Answer:
        return codecs.encode_exception(error)


# Declaring ----------------------------------------------------------------------------------------


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
    """Build a task and check its declaration. `control` are the exceptions with which a task controls its queue; they
    are never final."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function.__qualname__} is a generator, which no queue can run once: return a list")
    signature = build_caller_signature(function, context=context, tx=tx is not None, task=name)
    ignored = check_names("ignore", ignore, signature, name)
    template = Template.parse(key) if key else None
    if template is not None:
        check_names("key", template.fields, signature, name)
    limit = check_max_attempts(max_attempts, name)
    chosen = policy_of_worker(policy if repeatable else policy.replace(abandoned="uncertain"))
    if chosen.failures != "release":
        chosen = chosen.replace(failures=functools.partial(_is_final, chosen, (*control, AttemptsExhausted)))
    return FencedTask(
        safe, scope, name, function, signature, chosen, codec or JsonCodec(), template, ignored, tx, context, limit
    )


def check_max_attempts(limit: object, task: str) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise UsageError(f"{task}: max_attempts={limit!r}: give a whole number, 1 or more, or None for no limit")


def _is_final(
    policy: Policy, control: tuple[type[BaseException], ...], status: int, error: BaseException | None
) -> bool:
    return not isinstance(error, control) and policy.final(status, error)


def build_caller_signature(function: Callable[..., Any], *, context: bool, tx: bool, task: str) -> inspect.Signature:
    """The signature of the arguments that a caller passes: without the queue's context and the transaction."""
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
