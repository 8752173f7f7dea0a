"""Celery: tasks that run once.

    jobs = CeleryJobs(safe, app)

    @jobs.task(key="charge-{order_id}")
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

The task is an ordinary Celery task: `.delay`, chains, `autoretry_for` and the rest work as usual. `acks_late` and
`reject_on_worker_lost` are on, so that Celery delivers a job again when its worker dies. The fence makes that safe.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry

from retrysafe.errors import InProgress
from retrysafe.jobs.delivery import compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

DEFAULT_VISIBILITY_TIMEOUT_SECONDS = 3600.0


class CeleryJobs(QueueAdapter):
    """Tasks of Celery that run once per job."""

    queue = "Celery"
    control: ClassVar[tuple[type[BaseException], ...]] = (Retry, Ignore, Reject)

    def __init__(self, safe: RetrySafe, app: Celery, **options: Any) -> None:
        super().__init__(safe, **options)
        self.app = app

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        # Not shared: another Celery app in this process must not get this task for a task of the same name.
        chosen = {"acks_late": True, "reject_on_worker_lost": True, "shared": False, **options}
        return self.app.task(bind=True, name=fenced.name, **chosen)(wrap_task(fenced))

    def send(self, message: JobMessage) -> Any:
        task = self.app.tasks[message.task]
        return task.apply_async(message.args, message.kwargs, task_id=message.id, **message.delivery.given_options())

    def settings(self) -> list[Setting]:
        conf = self.app.conf
        visibility = float(
            (conf.broker_transport_options or {}).get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT_SECONDS)
        )
        acks_early = any(not self.app.tasks[name].acks_late for name in self.tasks)
        found = [
            Setting("acks_late off", "loses", float(acks_early), "declare the task with acks_late=True"),
            Setting("result_expires", "keeps", parse_expiry(conf.result_expires), "app.conf.result_expires = …"),
        ]
        if str(conf.broker_url or "").startswith(("redis", "sqs", "sentinel")):
            fix = "app.conf.broker_transport_options = {'visibility_timeout': 600}"
            found += [
                Setting("visibility_timeout (redelivers)", "redelivers", visibility, fix),
                Setting("visibility_timeout (notices)", "notices", visibility, fix),
            ]
        return found


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
    """The function that Celery calls. In a worker it runs the task behind the fence; called directly, it is the plain
    function."""

    @functools.wraps(fenced.function)
    def run(task: Task, *args: Any, **kwargs: Any) -> Any:
        request = task.request
        if request.called_directly and fenced.template is None:
            return fenced.function(*((task, *args) if fenced.context else args), **kwargs)
        try:
            return fenced.run(request.id or "", args, kwargs, task)
        except InProgress as busy:
            if request.called_directly or request.is_eager:
                raise
            # Not `task.retry`: waiting for another worker must not use up a retry that the task has for failures.
            retry = task.signature_from_request(
                request, args, kwargs, countdown=compute_busy_delay(busy), retries=request.retries or 0
            )
            retry.apply_async()
            raise Ignore from busy

    first = inspect.Parameter("task", inspect.Parameter.POSITIONAL_ONLY)
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in fenced.signature.parameters.values()
    ]
    run.__signature__ = inspect.Signature([first, *shown])  # type: ignore[attr-defined]  # inspect.signature() reads it
    return run


def parse_expiry(value: Any) -> float:
    """`result_expires` in seconds. None and 0 keep results for ever."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if value else float("inf")
