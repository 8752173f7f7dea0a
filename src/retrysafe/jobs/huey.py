"""Huey: tasks that run once.

    jobs = HueyJobs(safe, huey)

    @jobs.task(key="charge-{order_id}", retries=3)
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

Huey forgets a job when a worker takes it. One whose worker was killed is not delivered again: it is `lost` or still
`waiting`, and enqueueing it again with its key sends it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from huey.api import Huey
from huey.exceptions import CancelExecution, RetryTask
from huey.utils import normalize_time

from retrysafe.errors import InProgress
from retrysafe.jobs.busy_delay import compute_busy_delay
from retrysafe.jobs.enqueue_flow import Message
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


class HueyJobs(QueueAdapter):
    queue = "Huey"
    control: ClassVar[tuple[type[BaseException], ...]] = (RetryTask, CancelExecution)

    def __init__(self, safe: RetrySafe, huey: Huey, **options: Any) -> None:
        super().__init__(safe, **options)
        self.huey = huey
        self._wrappers: dict[str, Any] = {}

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        made = self.huey.task(context=True, name=fenced.name, **options)(wrap_task(fenced))
        self._wrappers[fenced.name] = made
        return made

    def default_name(self, function: Callable[..., Any]) -> str:
        return function.__name__

    def send(self, message: Message) -> Any:
        countdown, _, priority = message.delivery
        chosen: dict[str, Any] = {} if priority is None else {"priority": priority}
        if countdown is not None:
            chosen["eta"] = normalize_time(delay=countdown, utc=self.huey.utc)
        made = self._wrappers[message.task].task_class(message.args, message.kwargs, id=message.id, **chosen)
        return self.huey.enqueue(made)

    def unsupported_options(self) -> dict[str, str]:
        found = {"queue": "a Huey is one queue; make another Huey, and a HueyJobs for it"}
        if not self.huey.storage.priority:
            found["priority"] = f"{type(self.huey.storage).__name__} has none; use PriorityRedisHuey or SqliteHuey"
        return found

    def settings(self) -> list[Setting]:
        return [Setting("takes jobs off the queue first", "loses", 1.0, "enqueue again with the same key until done")]


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
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

    del run.__wrapped__  # or Huey would refuse an async function's wrapper
    return run
