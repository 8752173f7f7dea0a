"""Celery: tasks that run once.

    jobs = CeleryJobs(safe, app)

    @jobs.task(key="charge-{order_id}")
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

The task is an ordinary Celery task: `.delay`, chains, `autoretry_for` and the rest work as ever. `acks_late` and
`reject_on_worker_lost` are on, because a job whose worker dies is to be delivered again: the fence makes that safe.
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
from retrysafe.jobs.busy_delay import compute_busy_delay
from retrysafe.jobs.enqueue_flow import Message
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

DEFAULT_VISIBILITY_TIMEOUT_SECONDS = 3600.0


class CeleryJobs(QueueAdapter):
    queue = "Celery"
    control: ClassVar[tuple[type[BaseException], ...]] = (Retry, Ignore, Reject)

    def __init__(self, safe: RetrySafe, app: Celery, **options: Any) -> None:
        super().__init__(safe, **options)
        self.app = app

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        # Not shared: another Celery app of this process with a task of the same name must not get ours.
        chosen = {"acks_late": True, "reject_on_worker_lost": True, "shared": False, **options}
        return self.app.task(bind=True, name=fenced.name, **chosen)(wrap_task(fenced))

    def send(self, message: Message) -> Any:
        task = self.app.tasks[message.task]
        return task.apply_async(message.args, message.kwargs, task_id=message.id, **message.delivery.given_options())

    def settings(self) -> list[Setting]:
        conf = self.app.conf
        visibility = float(
            (conf.broker_transport_options or {}).get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT_SECONDS)
        )
        eager = any(not self.app.tasks[name].acks_late for name in self.tasks)
        found = [
            Setting("acks_late off", "loses", float(eager), "declare the task with acks_late=True"),
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
    """What Celery calls: in a worker the fence, called directly the function itself."""

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
            # Not `task.retry`: waiting for another worker must not use up the tries the task has for its failures.
            again = task.signature_from_request(
                request, args, kwargs, countdown=compute_busy_delay(busy), retries=request.retries or 0
            )
            again.apply_async()
            raise Ignore from busy

    first = inspect.Parameter("task", inspect.Parameter.POSITIONAL_ONLY)
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in fenced.signature.parameters.values()
    ]
    run.__signature__ = inspect.Signature([first, *shown])  # type: ignore[attr-defined]  # what inspect looks for
    return run


def parse_expiry(value: Any) -> float:
    """`result_expires` in seconds; None and 0 keep results for ever."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if value else float("inf")
