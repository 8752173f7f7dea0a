"""Huey: tasks that run once.

    jobs = HueyJobs(safe, huey)

    @jobs.task(key="charge-{order_id}", retries=3)
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

Huey removes a job from its queue when a worker takes it, so a job whose worker was killed is not delivered again. Its
state is `lost` or still `waiting`, and enqueueing it again with its key sends it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from huey.api import Huey
from huey.exceptions import CancelExecution, RetryTask
from huey.utils import normalize_time

from retrysafe.errors import InProgress
from retrysafe.jobs.delivery import compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


class HueyJobs(QueueAdapter):
    """Tasks of one Huey that run once per job."""

    queue = "Huey"
    control: ClassVar[tuple[type[BaseException], ...]] = (RetryTask, CancelExecution)

    def __init__(self, safe: RetrySafe, huey: Huey, **options: Any) -> None:
        super().__init__(safe, **options)
        self.huey = huey
        self._wrappers: dict[str, Any] = {}

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        wrapper = self.huey.task(context=True, name=fenced.name, **options)(wrap_task(fenced))
        self._wrappers[fenced.name] = wrapper
        return wrapper

    def default_name(self, function: Callable[..., Any]) -> str:
        return function.__name__

    def send(self, message: JobMessage) -> Any:
        countdown, _, priority = message.delivery
        chosen: dict[str, Any] = {} if priority is None else {"priority": priority}
        if countdown is not None:
            chosen["eta"] = normalize_time(delay=countdown, utc=self.huey.utc)
        task = self._wrappers[message.task].task_class(message.args, message.kwargs, id=message.id, **chosen)
        return self.huey.enqueue(task)

    def unsupported_options(self) -> dict[str, str]:
        reasons = {"queue": "a Huey is one queue; make another Huey, and a HueyJobs for it"}
        if not self.huey.storage.priority:
            reasons["priority"] = f"{type(self.huey.storage).__name__} has none; use PriorityRedisHuey or SqliteHuey"
        return reasons

    def settings(self) -> list[Setting]:
        return [Setting("takes jobs off the queue first", "loses", 1.0, "enqueue again with the same key until done")]


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
    """The function that Huey calls. In a worker it runs the task behind the fence; called directly, it is the plain
    function."""

    @functools.wraps(fenced.function)
    def run(*args: Any, task: Any = None, **kwargs: Any) -> Any:
        if task is None and fenced.template is None:
            return fenced.function(*args, **kwargs)
        try:
            return fenced.run(task.id if task is not None else "", args, kwargs, task)
        except InProgress as busy:
            if task is None:
                raise
            raise RetryTask(str(busy), delay=compute_busy_delay(busy)) from busy

    del run.__wrapped__  # Huey follows it, and would refuse the wrapper of an async function
    return run
