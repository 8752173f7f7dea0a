"""Taskiq: tasks that run once.

    jobs = TaskiqJobs(safe, broker)

    @jobs.task(key="charge-{order_id}")
    async def charge(order_id: str, cents: int) -> str: ...

    await jobs.aenqueue(charge, ("order-7", 500))

The task is an ordinary Taskiq task; its dependencies (`TaskiqDepends`) are no part of what is compared.

A broker's connections belong to the loop it was started on. From a thread (`jobs.enqueue`) a job is sent on that loop;
a broker that nobody has started is started on one in the background.
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
from retrysafe.jobs.busy_delay import compute_busy_delay
from retrysafe.jobs.enqueue_flow import Message
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

MAX_BUSY_HOLD_SECONDS = 2.0
"""Seconds a busy job stays with its worker before it goes back to the queue: brokers here have no delays."""

OPTION_LABELS = {"countdown": "delay", "queue": "queue_name", "priority": "priority"}
"""What brokers call it."""

_current_message: ContextVar[TaskiqMessage | None] = ContextVar("retrysafe_taskiq_message", default=None)


class DeliveryTracker(TaskiqMiddleware):
    """Notes which message is being executed, for the task's body to find, and on which loop the broker was started."""

    _started_on: tuple[int, asyncio.AbstractEventLoop] | None = None

    def startup(self) -> None:
        self._started_on = (os.getpid(), asyncio.get_running_loop())

    def shutdown(self) -> None:
        self._started_on = None

    def broker_loop(self) -> asyncio.AbstractEventLoop | None:
        """The broker's loop, while it runs. A fork leaves it behind in the parent."""
        if self._started_on is None or self._started_on[0] != os.getpid() or not self._started_on[1].is_running():
            return None
        return self._started_on[1]

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        _current_message.set(message)
        return message


class TaskiqJobs(QueueAdapter):
    queue = "Taskiq"
    control: ClassVar[tuple[type[BaseException], ...]] = (NoResultError, TaskRejectedError)

    def __init__(self, safe: RetrySafe, broker: AsyncBroker, **options: Any) -> None:
        super().__init__(safe, **options)
        self.broker = broker
        self._deliveries = DeliveryTracker()
        self._starting = threading.Lock()
        broker.add_middlewares(self._deliveries)

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        return self.broker.task(task_name=fenced.name, **options)(self._wrap_task(fenced))

    def injected_arguments(self, function: Callable[..., Any]) -> tuple[str, ...]:
        parameters = inspect.signature(function).parameters.values()
        return tuple(each.name for each in parameters if isinstance(each.default, Dependency))

    def name_of(self, task: Any) -> str:
        return str(getattr(task, "task_name", "")) or super().name_of(task)

    def send(self, message: Message) -> Any:
        loop = self._find_broker_loop()
        if loop is running_loop():
            raise UsageError("enqueue() blocks the event loop that the broker would send on: await aenqueue() instead")
        return asyncio.run_coroutine_threadsafe(self.asend(message), loop).result()

    def _find_broker_loop(self) -> asyncio.AbstractEventLoop:
        """The loop the broker was started on. Brokers of RabbitMQ refuse to send before they are started."""
        with self._starting:
            loop = self._deliveries.broker_loop()
            return loop if loop is not None else wait_for(self._start_broker())

    async def _start_broker(self) -> asyncio.AbstractEventLoop:
        try:
            await self.broker.startup()
        except BaseException:
            self._deliveries.shutdown()  # it was noted before the broker connected
            raise
        return asyncio.get_running_loop()

    async def asend(self, message: Message) -> Any:
        task = self.broker.find_task(message.task)
        assert task is not None, "declared with this broker"
        names = labels_of(self.broker)
        labels = {names[option]: value for option, value in message.delivery.given_options().items()}
        return await task.kicker().with_labels(**labels).with_task_id(message.id).kiq(*message.args, **message.kwargs)

    def unsupported_options(self) -> dict[str, str]:
        """Brokers read the labels they know, and say nothing of the others."""
        broker, kind = self.broker, type(self.broker)
        if kind.__module__.startswith("taskiq_redis"):
            return dict.fromkeys(("countdown", "priority"), f"{kind.__name__} has none; use AioPikaBroker")
        if not kind.__module__.startswith("taskiq_aio_pika"):
            why = f"nothing is known of {kind.__name__}; give the task labels that it reads: task(label=…)"
            return dict.fromkeys(OPTION_LABELS, why)
        found, queues = {}, getattr(broker, "_task_queues", [])
        if not (getattr(broker, "_delay_queue", None) or getattr(broker, "_delayed_message_exchange_plugin", False)):
            found["countdown"] = "give AioPikaBroker a delay_queue, or the plugin for delays"
        if len(queues) < 2:
            found["queue"] = "this AioPikaBroker has one queue; give it others with with_queue(…)"
        if all(getattr(queue, "max_priority", None) is None for queue in queues):
            found["priority"] = "none of its queues has a max_priority"
        return found

    def settings(self) -> list[Setting]:
        found = []
        idle = getattr(self.broker, "idle_timeout", None)
        acked = hasattr(self.broker, "consumer_group_name") or not type(self.broker).__module__.startswith(
            "taskiq_redis"
        )
        found.append(Setting("no acknowledgement", "loses", float(not acked), "use RedisStreamBroker"))
        if idle is not None:
            found.append(Setting("idle_timeout", "notices", idle / 1000, "RedisStreamBroker(idle_timeout=60_000)"))
        kept = getattr(self.broker.result_backend, "result_ex_time", None)
        if kept is not None:
            found.append(Setting("result_ex_time", "keeps", float(kept), "RedisAsyncResultBackend(result_ex_time=…)"))
        return found

    def _wrap_task(self, fenced: FencedTask) -> Callable[..., Any]:
        """What Taskiq calls: in a worker the fence, called directly the function itself."""

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

        run.__signature__ = fenced.signature  # type: ignore[attr-defined]  # what Taskiq parses arguments by
        run.__annotations__ = {
            name: value for name, value in run.__annotations__.items() if name in fenced.signature.parameters
        }
        return run


def labels_of(broker: AsyncBroker) -> dict[str, str]:
    """What a broker calls them: AioPikaBroker lets one choose."""
    chosen = {"queue": "_label_for_routing", "priority": "_label_for_priority"}
    return {
        **OPTION_LABELS,
        **{option: getattr(broker, name, OPTION_LABELS[option]) for option, name in chosen.items()},
    }


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of this thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
