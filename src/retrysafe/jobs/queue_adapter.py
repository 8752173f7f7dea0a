"""The fence for task functions, and what every queue's adapter has in common: declare, enqueue once, ask for results.

It works with any queue: declare tasks with `fence`, call `run` or `arun` in the worker with the delivery's id, and
give `enqueue` a function that sends. An adapter is that, written down for one queue.
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
from retrysafe.errors import AnswerGone, UsageError
from retrysafe.jobs import enqueue_flow, job_lookup
from retrysafe.jobs.delivery_options import DeliveryOptions, check_delivery
from retrysafe.jobs.enqueue_flow import RESEND_AFTER_SECONDS, JobSnapshot, JobState, Message, read_job_state
from retrysafe.jobs.task import JOB, MAX_ATTEMPTS, FencedTask, declare_task
from retrysafe.policy import Policy

if TYPE_CHECKING:
    from retrysafe.core.jobs import Job
    from retrysafe.engine.safe import RetrySafe
    from retrysafe.stores.diagnosis import Diagnosis


class Enqueued(NamedTuple):
    """What became of an `enqueue`."""

    id: str
    state: JobState
    sent: bool
    """Whether this call sent it."""
    result: Any = None
    """The first run's result, when the state is "done"."""


class QueueAdapter:
    """Tasks that run once per job, on any queue.

    `scope` keeps several queues on one store apart: the same key in two scopes is two jobs. `resend_after`: seconds
    after which a job that no worker has taken is sent again by whoever enqueues it again. `max_attempts`: after so many
    attempts a job whose worker dies is not begun again, but left to a person; None: it is begun again for ever.
    """

    queue: ClassVar[str] = "queue"
    control: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions by which a task talks to its queue (try again, give up): never its result."""

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
        """Put a function behind the fence.

        name        what the queue calls it; the module and name of the function unless given
        key         `"receipt-{order_id}"`: the job's key, made of its arguments; without it the job's id is the key
        ignore      arguments that are not compared when a key is used again
        repeatable  whether it may run again after its worker died; False leaves that to a person
        tx          where to open a transaction: what the function writes on its argument `tx` commits with its result
        context     whether the function wants the queue's own context as its first argument
        max_attempts  after so many attempts it is not begun again if its worker dies; that of the fence unless given
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
        """The queue's own task decorator, behind the fence: what is returned is the queue's own kind of task. The
        arguments are those of `fence`; the others are the queue's."""

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
        """Make it a task of the queue: the adapter's part."""
        if options:
            raise UsageError(f"task({', '.join(options)}=…): {type(self).__name__} has no such option")
        return fenced

    def default_name(self, function: Callable[..., Any]) -> str:
        """What the queue calls a task that was given no name."""
        return f"{function.__module__}.{function.__qualname__}"

    def injected_arguments(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """Arguments that the queue fills in by itself."""
        return ()

    def find(self, task: Any) -> FencedTask:
        """The fenced task behind what a user holds: the queue's own task object, a function, a name."""
        if isinstance(task, FencedTask):
            return task
        name = task if isinstance(task, str) else self.name_of(task)
        if name not in self.tasks:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UsageError(f"{task!r} is not a task of this {type(self).__name__}; the tasks here are {known}")
        return self.tasks[name]

    def name_of(self, task: Any) -> str:
        """What a task object of this queue is called."""
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
        send: Callable[[Message], Any] | None = None,
        resend_after: float | None = None,
    ) -> Enqueued:
        """Send the job this key stands for, once; if it is done, its result comes back instead.

        `countdown` (seconds), `queue` and `priority` are passed on to the queue, and refused where it has no such
        thing. A `send` of your own finds them in `message.delivery`.
        """
        how = self._build_delivery(countdown, queue, priority, own=send is not None)
        fenced, message = self._build_message(task, args, kwargs, key, how)
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
        send: Callable[[Message], Any] | None = None,
        resend_after: float | None = None,
    ) -> Enqueued:
        """`enqueue` on an event loop."""
        how = self._build_delivery(countdown, queue, priority, own=send is not None)
        fenced, message = self._build_message(task, args, kwargs, key, how)
        flow = self._enqueue_flow(fenced, message, send or self.asend, resend_after)
        return self._build_enqueued(fenced, message.id, await arun(flow, self._aperform))

    def send(self, message: Message) -> Any:
        """Hand a message to the queue: each adapter has one of the two, and gets the other from it."""
        if type(self).asend is QueueAdapter.asend:
            raise UsageError(f"{type(self).__name__} does not know how to send: pass send= to enqueue")
        return wait_for(self.asend(message))

    async def asend(self, message: Message) -> Any:
        import asyncio

        return await asyncio.to_thread(self.send, message)

    def _enqueue_flow(
        self, fenced: FencedTask, message: Message, send: Callable[[Message], Any], resend_after: float | None
    ) -> Flow[JobSnapshot]:
        task = fenced.build_task(message.id, message.args, message.kwargs)
        after = self.resend_after if resend_after is None else resend_after
        after += message.delivery.countdown or 0.0  # until then nobody has missed it
        return enqueue_flow.enqueue(task, message, send, after)

    def unsupported_options(self) -> dict[str, str]:
        """Which of `countdown`, `queue` and `priority` this queue has not, each with the reason."""
        return {}

    def _build_delivery(
        self, countdown: float | None, queue: str | None, priority: int | None, *, own: bool
    ) -> DeliveryOptions:
        return check_delivery(
            DeliveryOptions(countdown, queue, priority), self.queue, {} if own else self.unsupported_options()
        )

    def _build_message(
        self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any] | None, key: str, delivery: DeliveryOptions
    ) -> tuple[FencedTask, Message]:
        if isinstance(args, str | bytes | Mapping):
            raise UsageError(f"args={args!r}: give the positional arguments as a tuple, for example args=({args!r},)")
        fenced, given, named = self.find(task), tuple(args), dict(kwargs or {})
        return fenced, Message(fenced.key_of(given, named, key), fenced.name, given, named, delivery=delivery)

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

    # Asking ---------------------------------------------------------------------------------

    def result(self, key: str, *, wait: float = 0.0) -> Any:
        """What the job returned, also after its queue forgot it. Raises NotDone until then.

        `key` is the key it was enqueued with, its id, or what a task's own key reads like: `receipt-7` finds the job of
        `receipt-{order_id}` with 7 or "7".
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
        """How far the job of this key is."""
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
        """Enqueue it once and wait for its result: for a saga whose step is done by a worker. Raises NotDone when
        it takes longer; calling again goes on waiting for the same job."""
        told = self.enqueue(task, args, kwargs, key=key)
        return told.result if told.state == "done" else self.result(told.id, wait=wait)

    async def aperform(
        self,
        task: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        wait: float = 30.0,
    ) -> Any:
        told = await self.aenqueue(task, args, kwargs, key=key)
        return told.result if told.state == "done" else await self.aresult(told.id, wait=wait)

    def _record_id(self, id: str) -> bytes:
        return Key(id, self.scope, "job").id(self.safe.namespace)

    def _decode_result(self, fenced: FencedTask | None, id: str, record: Record | None) -> Any:
        assert record is not None
        assert record.answer is not None, "a completed record has an answer"
        if record.answer.gone:
            raise AnswerGone(id, record.answer.gone)
        # A process that only asks need not know the task, unless its results are in a format of its own.
        reader = fenced or FencedTask(
            self.safe, self.scope, record.target, _refuse_call, _EMPTY_SIGNATURE, self.policy, JsonCodec()
        )
        return reader.decode_answer(record.answer, record.id)

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

        The payload is the arguments: an object gives them by name, a list by position. The others as for `enqueue`.
        """
        from retrysafe.jobs.publisher import QueuePublisher

        return QueuePublisher(self, self.find(task), self._build_delivery(countdown, queue, priority, own=False))

    def diagnose(self) -> Diagnosis:
        """What the queue's own settings are worth beside ours; `retrysafe doctor module:jobs` prints it."""
        from retrysafe.jobs.retention import diagnose_queue

        return diagnose_queue(self)

    def settings(self) -> list[Any]:
        """The queue's own retention, as `retention.Setting`s; each adapter reads its own."""
        return []


def _refuse_call() -> None:
    raise AssertionError("only its results are read")


_EMPTY_SIGNATURE = inspect.Signature()
