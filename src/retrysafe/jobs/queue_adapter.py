"""What every queue's adapter has in common: declare tasks, enqueue a job once, read its state and its result.

`QueueAdapter` works with any queue: declare tasks with `fence`, call `run` or `arun` in the worker with the delivery's
id, and give `enqueue` a function that sends. An adapter does these three things for one queue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from retrysafe.core.keys import Key
from retrysafe.core.records import Record
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.codecs import Codec, JsonCodec
from retrysafe.engine.drive import arun, run
from retrysafe.engine.effects import CallFunction, Effect, Flow
from retrysafe.engine.once import read_answer
from retrysafe.errors import AnswerGone, UsageError
from retrysafe.jobs import enqueue_flow, job_lookup
from retrysafe.jobs.delivery import DeliveryOptions, check_delivery
from retrysafe.jobs.enqueue_flow import RESEND_AFTER_SECONDS, JobMessage, JobSnapshot, JobState, read_job_state
from retrysafe.jobs.task import JOB, MAX_ATTEMPTS, FencedTask, declare_task
from retrysafe.policy import Policy

if TYPE_CHECKING:
    from retrysafe.core.jobs import Job
    from retrysafe.engine.safe import RetrySafe
    from retrysafe.stores.diagnosis import Diagnosis


class Enqueued(NamedTuple):
    """The result of an `enqueue`."""

    id: str
    state: JobState
    sent: bool
    """Whether this call sent the job."""
    result: Any = None
    """The result of the first run, if the state is "done"."""


class QueueAdapter:
    """Tasks that run once per job, on any queue.

    `scope` separates several queues on one store: the same key in two scopes is two jobs. `resend_after` is in seconds:
    a job that no worker has begun for so long is sent again when it is enqueued again. `max_attempts`: after so many
    attempts a job whose worker dies is not begun again, but left to an operator. With None it is begun again without
    limit.
    """

    queue: ClassVar[str] = "queue"
    control: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions with which a task controls its queue (retry, give up). They are never stored as the task's result."""

    def __init__(
        self,
        safe: RetrySafe,
        *,
        scope: str = "jobs",
        policy: Policy | None = None,
        resend_after: float = RESEND_AFTER_SECONDS,
        max_attempts: int | None = MAX_ATTEMPTS,
    ) -> None:
        self.safe = safe
        self.scope = scope
        self.policy = policy or JOB
        self.resend_after = resend_after
        self.max_attempts = max_attempts
        self.tasks: dict[str, FencedTask] = {}

    # Declaring ------------------------------------------------------------------------------

    def fence(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        key: str = "",
        ignore: Iterable[str] = (),
        repeatable: bool = True,
        tx: Any = None,
        context: bool = False,
        policy: Policy | None = None,
        codec: Codec | None = None,
        max_attempts: int | Literal["default"] | None = "default",
    ) -> FencedTask:
        """Protect a function: it runs once for each key.

        name          what the queue calls the task; by default the module and name of the function
        key           `"receipt-{order_id}"`: the job's key, made of its arguments; without it the job's id is the key
        ignore        arguments that are not compared when a key is used again
        repeatable    whether the job may run again after its worker died; False leaves that to a person
        tx            where to open a transaction: what the function writes on its argument `tx` commits with its result
        context       whether the function gets the queue's own context as its first argument
        max_attempts  after so many attempts the job is not begun again if its worker dies; by default the adapter's own
        """
        chosen = name or self.default_name(function)
        if chosen in self.tasks:
            raise UsageError(f"task {chosen!r} is declared already; give another name=")
        self.tasks[chosen] = declare_task(
            self.safe,
            self.scope,
            function,
            name=chosen,
            key=key,
            ignore=ignore,
            repeatable=repeatable,
            tx=tx,
            context=context,
            policy=policy or self.policy,
            codec=codec,
            max_attempts=self.max_attempts if max_attempts == "default" else max_attempts,
            control=self.control,
        )
        return self.tasks[chosen]

    def task(
        self,
        *,
        name: str = "",
        key: str = "",
        ignore: Iterable[str] = (),
        repeatable: bool = True,
        tx: Any = None,
        context: bool = False,
        policy: Policy | None = None,
        codec: Codec | None = None,
        max_attempts: int | Literal["default"] | None = "default",
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Any]:
        """The task decorator of the queue, with protection. It returns the queue's own kind of task. The named
        arguments are those of `fence`; all other options go to the queue."""

        def decorate(function: Callable[..., Any]) -> Any:
            fenced = self.fence(
                function,
                name=name or self.default_name(function),
                key=key,
                ignore=(*ignore, *self.injected_arguments(function)),
                repeatable=repeatable,
                tx=tx,
                context=context,
                policy=policy,
                codec=codec,
                max_attempts=max_attempts,
            )
            return self.register(fenced, options)

        return decorate

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        """Make the fenced task a task of the queue. Each adapter overrides this."""
        if options:
            raise UsageError(f"task({', '.join(options)}=…): {type(self).__name__} has no such option")
        return fenced

    def default_name(self, function: Callable[..., Any]) -> str:
        """The name of a task that was declared without one."""
        return f"{function.__module__}.{function.__qualname__}"

    def injected_arguments(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """The arguments that the queue fills in by itself."""
        return ()

    def find(self, task: Any) -> FencedTask:
        """The fenced task for a task object of the queue, a function, or a name."""
        if isinstance(task, FencedTask):
            return task
        name = task if isinstance(task, str) else self.name_of(task)
        if name not in self.tasks:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UsageError(f"{task!r} is not a task of this {type(self).__name__}; the tasks here are {known}")
        return self.tasks[name]

    def name_of(self, task: Any) -> str:
        """The name of a task object of this queue."""
        fenced = getattr(task, "fenced", None)
        return fenced.name if isinstance(fenced, FencedTask) else str(getattr(task, "name", task))

    # Enqueueing -----------------------------------------------------------------------------

    def enqueue(
        self,
        task: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        countdown: float | None = None,
        queue: str | None = None,
        priority: int | None = None,
        send: Callable[[JobMessage], Any] | None = None,
        resend_after: float | None = None,
    ) -> Enqueued:
        """Send the job that this key names, once. If the job is done, its result is returned instead.

        `countdown` (seconds), `queue` and `priority` are passed on to the queue, and refused if the queue does not
        support them. A `send` of your own finds them in `message.delivery`.
        """
        delivery = self._build_delivery(countdown, queue, priority, own_send=send is not None)
        fenced, message = self._build_message(task, args, kwargs, key, delivery)
        flow = self._enqueue_flow(fenced, message, send or self.send, resend_after)
        return self._build_enqueued(fenced, message.id, run(flow, self._perform))

    async def aenqueue(
        self,
        task: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        countdown: float | None = None,
        queue: str | None = None,
        priority: int | None = None,
        send: Callable[[JobMessage], Any] | None = None,
        resend_after: float | None = None,
    ) -> Enqueued:
        """`enqueue` on an event loop."""
        delivery = self._build_delivery(countdown, queue, priority, own_send=send is not None)
        fenced, message = self._build_message(task, args, kwargs, key, delivery)
        flow = self._enqueue_flow(fenced, message, send or self.asend, resend_after)
        return self._build_enqueued(fenced, message.id, await arun(flow, self._aperform))

    def send(self, message: JobMessage) -> Any:
        """Send a message to the queue. An adapter overrides `send` or `asend`; the other one calls it."""
        if type(self).asend is QueueAdapter.asend:
            raise UsageError(f"{type(self).__name__} does not know how to send: pass send= to enqueue")
        return wait_for(self.asend(message))

    async def asend(self, message: JobMessage) -> Any:
        import asyncio

        return await asyncio.to_thread(self.send, message)

    def _enqueue_flow(
        self, fenced: FencedTask, message: JobMessage, send: Callable[[JobMessage], Any], resend_after: float | None
    ) -> Flow[JobSnapshot]:
        task = fenced.build_task(message.id, message.args, message.kwargs)
        after = self.resend_after if resend_after is None else resend_after
        after += message.delivery.countdown or 0.0  # no worker can begin the job before its countdown ends
        return enqueue_flow.enqueue(task, message, send, after)

    def unsupported_options(self) -> dict[str, str]:
        """Which of `countdown`, `queue` and `priority` this queue does not support, each with the reason."""
        return {}

    def _build_delivery(
        self, countdown: float | None, queue: str | None, priority: int | None, *, own_send: bool
    ) -> DeliveryOptions:
        return check_delivery(
            DeliveryOptions(countdown, queue, priority), self.queue, {} if own_send else self.unsupported_options()
        )

    def _build_message(
        self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any] | None, key: str, delivery: DeliveryOptions
    ) -> tuple[FencedTask, JobMessage]:
        if isinstance(args, str | bytes | Mapping):
            raise UsageError(f"args={args!r}: give the positional arguments as a tuple, for example args=({args!r},)")
        fenced, given, named = self.find(task), tuple(args), dict(kwargs or {})
        return fenced, JobMessage(fenced.key_of(given, named, key), fenced.name, given, named, delivery=delivery)

    def _build_enqueued(self, fenced: FencedTask, id: str, seen: JobSnapshot) -> Enqueued:
        result = self._decode_result(fenced, id, seen.record) if seen.state == "done" else None
        return Enqueued(id, seen.state, seen.sent, result)

    def _perform(self, effect: Effect) -> Any:
        return effect.function() if isinstance(effect, CallFunction) else self.safe.performer()(effect)

    async def _aperform(self, effect: Effect) -> Any:
        if not isinstance(effect, CallFunction):
            return await self.safe.async_performer()(effect)
        result = effect.function()
        return await result if inspect.isawaitable(result) else result

    # Reading --------------------------------------------------------------------------------

    def result(self, key: str, *, wait: float = 0.0) -> Any:
        """The job's result, also after its queue dropped it. Raises NotDone until the job is done.

        `key` is the key that the job was enqueued with, or its id, or the readable form of a task's own key:
        `receipt-7` finds the job of `receipt-{order_id}` with 7 or "7".
        """
        record = run(
            job_lookup.wait_for_result(self._find_candidate_ids(key), self._record_id, key, wait), self._perform
        )
        return self._decode_result(self.tasks.get(record.target), record.key, record)

    async def aresult(self, key: str, *, wait: float = 0.0) -> Any:
        flow = job_lookup.wait_for_result(self._find_candidate_ids(key), self._record_id, key, wait)
        record = await arun(flow, self._aperform)
        return self._decode_result(self.tasks.get(record.target), record.key, record)

    def state(self, key: str) -> JobState:
        """The state of the job with this key."""
        seen = run(job_lookup.lookup_job(self._find_candidate_ids(key), self._record_id, key), self._perform)
        return read_job_state(seen.record, seen.now)

    async def astate(self, key: str) -> JobState:
        seen = await arun(job_lookup.lookup_job(self._find_candidate_ids(key), self._record_id, key), self._aperform)
        return read_job_state(seen.record, seen.now)

    def _find_candidate_ids(self, key: str) -> list[str]:
        return job_lookup.find_candidate_ids(
            key, [task.template for task in self.tasks.values() if task.template is not None]
        )

    def perform(
        self,
        task: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        wait: float = 30.0,
    ) -> Any:
        """Enqueue the job once and wait for its result: for a saga whose step is done by a worker. Raises NotDone if
        the job takes longer than `wait` seconds; another call waits for the same job again."""
        enqueued = self.enqueue(task, args, kwargs, key=key)
        return enqueued.result if enqueued.state == "done" else self.result(enqueued.id, wait=wait)

    async def aperform(
        self,
        task: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        wait: float = 30.0,
    ) -> Any:
        enqueued = await self.aenqueue(task, args, kwargs, key=key)
        return enqueued.result if enqueued.state == "done" else await self.aresult(enqueued.id, wait=wait)

    def _record_id(self, id: str) -> bytes:
        return Key(id, self.scope, "job").id(self.safe.namespace)

    def _decode_result(self, fenced: FencedTask | None, id: str, record: Record | None) -> Any:
        assert record is not None
        assert record.answer is not None, "a completed record has an answer"
        if record.answer.gone:
            raise AnswerGone(id, record.answer.gone)
        # A process that only reads results need not declare the task, unless the task has its own codec.
        codec = fenced.codec if fenced is not None else JsonCodec()
        return read_answer(record.target, codec, record.answer, record.id)

    # The outbox, the doctor -------------------------------------------------------------------

    def publisher(
        self,
        task: Any,
        *,
        countdown: float | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Callable[[Job], Any]:
        """For `safe.publish(topic)`: sends a staged job to this queue as a job of `task`, with the staged id.

        The payload has the arguments: an object gives them by name, a list by position. The options are those of
        `enqueue`.
        """
        from retrysafe.jobs.publisher import QueuePublisher

        return QueuePublisher(self, self.find(task), self._build_delivery(countdown, queue, priority, own_send=False))

    def diagnose(self) -> Diagnosis:
        """How the queue's own settings fit the tasks' policies; `retrysafe doctor MODULE:JOBS` prints it."""
        from retrysafe.jobs.retention import diagnose_queue

        return diagnose_queue(self)

    def settings(self) -> list[Any]:
        """The queue's own retention, as `retention.Setting`s. Each adapter overrides this."""
        return []
