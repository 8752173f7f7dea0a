"""Taskiq: tasks that run once.

    jobs = TaskiqJobs(safe, broker)

    @jobs.task(key="charge-{order_id}")
    async def charge(order_id: str, cents: int) -> str: ...

    await jobs.aenqueue(charge, ("order-7", 500))

The task is an ordinary Taskiq task. Its dependencies (`TaskiqDepends`) are left out of the fingerprint.

A broker's connections belong to the event loop that it was started on. From a thread (`jobs.enqueue`) a job is sent on
that loop. A broker that is not started yet is started on a background loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from taskiq import AsyncBroker, Context, NoResultError, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import TaskRejectedError
from taskiq_dependencies.dependency import Dependency

from retrysafe.engine.bridge import wait_for
from retrysafe.errors import InProgress, UsageError
from retrysafe.jobs.delivery import compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

MAX_BUSY_HOLD_SECONDS = 2.0
"""How long a worker holds a busy job before it goes back to the queue. Not every broker has delays."""

OPTION_LABELS = {"countdown": "delay", "queue": "queue_name", "priority": "priority"}
"""The labels under which brokers read the options."""

_current_message: ContextVar[TaskiqMessage | None] = ContextVar("retrysafe_taskiq_message", default=None)


class DeliveryTracker(TaskiqMiddleware):
    """Records the message that is being executed, for the task's wrapper, and the loop that the broker was started
    on."""

    _started_on: tuple[int, asyncio.AbstractEventLoop] | None = None

    def startup(self) -> None:
        self._started_on = (os.getpid(), asyncio.get_running_loop())

    def shutdown(self) -> None:
        self._started_on = None

    def broker_loop(self) -> asyncio.AbstractEventLoop | None:
        """The broker's loop, while it runs. After a fork the loop runs only in the parent."""
        if self._started_on is None or self._started_on[0] != os.getpid() or not self._started_on[1].is_running():
            return None
        return self._started_on[1]

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        _current_message.set(message)
        return message


class TaskiqJobs(QueueAdapter):
    """Tasks of Taskiq that run once per job."""

    queue = "Taskiq"
    control: ClassVar[tuple[type[BaseException], ...]] = (NoResultError, TaskRejectedError)

    def __init__(self, safe: RetrySafe, broker: AsyncBroker, **options: Any) -> None:
        super().__init__(safe, **options)
        self.broker = broker
        self._tracker = DeliveryTracker()
        self._starting = threading.Lock()
        broker.add_middlewares(self._tracker)

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        return self.broker.task(task_name=fenced.name, **options)(self._wrap_task(fenced))

    def injected_arguments(self, function: Callable[..., Any]) -> tuple[str, ...]:
        parameters = inspect.signature(function).parameters.values()
        return tuple(each.name for each in parameters if isinstance(each.default, Dependency))

    def name_of(self, task: Any) -> str:
        return str(getattr(task, "task_name", "")) or super().name_of(task)

    def send(self, message: JobMessage) -> Any:
        loop = self._find_broker_loop()
        if loop is get_running_loop():
            raise UsageError("enqueue() blocks the event loop that the broker would send on: await aenqueue() instead")
        return asyncio.run_coroutine_threadsafe(self.asend(message), loop).result()

    def _find_broker_loop(self) -> asyncio.AbstractEventLoop:
        """The loop the broker was started on. RabbitMQ's broker refuses to send before it is started."""
        with self._starting:
            loop = self._tracker.broker_loop()
            return loop if loop is not None else wait_for(self._start_broker())

    async def _start_broker(self) -> asyncio.AbstractEventLoop:
        try:
            await self.broker.startup()
        except BaseException:
            self._tracker.shutdown()  # `startup` recorded the loop before the broker connected
            raise
        return asyncio.get_running_loop()

    async def asend(self, message: JobMessage) -> Any:
        task = self.broker.find_task(message.task)
        assert task is not None, "declared with this broker"
        names = read_label_names(self.broker)
        labels = {names[option]: value for option, value in message.delivery.given_options().items()}
        return await task.kicker().with_labels(**labels).with_task_id(message.id).kiq(*message.args, **message.kwargs)

    def unsupported_options(self) -> dict[str, str]:
        """Brokers ignore labels that they do not know, so an option is refused unless the broker is known to read its
        label."""
        broker, kind = self.broker, type(self.broker)
        if kind.__module__.startswith("taskiq_redis"):
            return dict.fromkeys(("countdown", "priority"), f"{kind.__name__} has none; use AioPikaBroker")
        if not kind.__module__.startswith("taskiq_aio_pika"):
            why = f"nothing is known of {kind.__name__}; give the task labels that it reads: task(label=…)"
            return dict.fromkeys(OPTION_LABELS, why)
        reasons, queues = {}, getattr(broker, "_task_queues", [])
        if not (getattr(broker, "_delay_queue", None) or getattr(broker, "_delayed_message_exchange_plugin", False)):
            reasons["countdown"] = "give AioPikaBroker a delay_queue, or the plugin for delays"
        if len(queues) < 2:
            reasons["queue"] = "this AioPikaBroker has one queue; give it others with with_queue(…)"
        if all(getattr(queue, "max_priority", None) is None for queue in queues):
            reasons["priority"] = "none of its queues has a max_priority"
        return reasons

    def settings(self) -> list[Setting]:
        found = []
        idle = getattr(self.broker, "idle_timeout", None)
        acknowledges = hasattr(self.broker, "consumer_group_name") or not type(self.broker).__module__.startswith(
            "taskiq_redis"
        )
        found.append(Setting("no acknowledgement", "loses", float(not acknowledges), "use RedisStreamBroker"))
        if idle is not None:
            found.append(Setting("idle_timeout", "notices", idle / 1000, "RedisStreamBroker(idle_timeout=60_000)"))
        ttl = getattr(self.broker.result_backend, "result_ex_time", None)
        if ttl is not None:
            found.append(Setting("result_ex_time", "keeps", float(ttl), "RedisAsyncResultBackend(result_ex_time=…)"))
        return found

    def _wrap_task(self, fenced: FencedTask) -> Callable[..., Any]:
        """The coroutine function that Taskiq calls. In a worker it runs the task behind the fence; called directly, it
        is the plain function."""

        @functools.wraps(fenced.function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            message = _current_message.get()
            if message is None:
                if fenced.template is not None:
                    return await fenced.arun("", args, kwargs)
                result = fenced.function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            try:
                return await fenced.arun(message.task_id, args, kwargs, message)
            except InProgress as busy:
                await asyncio.sleep(min(compute_busy_delay(busy), MAX_BUSY_HOLD_SECONDS))
                return await Context(message, self.broker).requeue()

        run.__signature__ = fenced.signature  # type: ignore[attr-defined]  # Taskiq parses arguments by it
        run.__annotations__ = {
            name: value for name, value in run.__annotations__.items() if name in fenced.signature.parameters
        }
        return run


def read_label_names(broker: AsyncBroker) -> dict[str, str]:
    """The broker's label for each option. AioPikaBroker lets the user choose some of them."""
    chosen = {"queue": "_label_for_routing", "priority": "_label_for_priority"}
    return {
        **OPTION_LABELS,
        **{option: getattr(broker, name, OPTION_LABELS[option]) for option, name in chosen.items()},
    }


def get_running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
