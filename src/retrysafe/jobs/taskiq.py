"""Taskiq: tasks that run once.

    jobs = TaskiqJobs(safe, broker)

    @jobs.task(key="charge-{order_id}")
    async def charge(order_id: str, cents: int) -> str: ...

    await jobs.aenqueue(charge, ("order-7", 500))

The task is an ordinary Taskiq task; its dependencies (`TaskiqDepends`) are no part of what is compared.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from taskiq import AsyncBroker, Context, NoResultError, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import TaskRejectedError
from taskiq_dependencies.dependency import Dependency

from retrysafe.errors import InProgress
from retrysafe.jobs.enqueueing import Message
from retrysafe.jobs.fence import Fence
from retrysafe.jobs.later import later
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

LONGEST_HOLD = 2.0
"""Seconds a busy job stays with its worker before it goes back to the queue: brokers here have no delays."""

_delivered: ContextVar[TaskiqMessage | None] = ContextVar("retrysafe_taskiq_message", default=None)


class Deliveries(TaskiqMiddleware):
    """Notes which message is being executed, for the task's body to find."""

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        _delivered.set(message)
        return message


class TaskiqJobs(Fence):
    queue = "Taskiq"
    control: ClassVar[tuple[type[BaseException], ...]] = (NoResultError, TaskRejectedError)

    def __init__(self, safe: RetrySafe, broker: AsyncBroker, **options: Any) -> None:
        super().__init__(safe, **options)
        self.broker = broker
        broker.add_middlewares(Deliveries())

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        return self.broker.task(task_name=fenced.name, **options)(self._body(fenced))

    def injected(self, function: Callable[..., Any]) -> tuple[str, ...]:
        parameters = inspect.signature(function).parameters.values()
        return tuple(each.name for each in parameters if isinstance(each.default, Dependency))

    def name_of(self, task: Any) -> str:
        return str(getattr(task, "task_name", "")) or super().name_of(task)

    async def asend(self, message: Message) -> Any:
        task = self.broker.find_task(message.task)
        assert task is not None, "declared with this broker"
        return await task.kicker().with_task_id(message.id).kiq(*message.args, **message.kwargs)

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

    def _body(self, fenced: FencedTask) -> Callable[..., Any]:
        """What Taskiq calls: in a worker the fence, called directly the function itself."""

        @functools.wraps(fenced.function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            message = _delivered.get()
            if message is None:
                if fenced.template is not None:
                    return await fenced.arun("", args, kwargs)
                result = fenced.function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            try:
                return await fenced.arun(message.task_id, args, kwargs, message)
            except InProgress as busy:
                await asyncio.sleep(min(later(busy), LONGEST_HOLD))
                return await Context(message, self.broker).requeue()

        run.__signature__ = fenced.signature  # type: ignore[attr-defined]  # what Taskiq parses arguments by
        run.__annotations__ = {
            name: value for name, value in run.__annotations__.items() if name in fenced.signature.parameters
        }
        return run
