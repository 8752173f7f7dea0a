"""From the outbox to a queue: a staged job becomes a job of a task, with the same id each time it is published.

    safe.publish("order.paid")(jobs.publisher(send_receipt))

Publishing twice sends two messages with one id, and the fence runs the job once. So the publisher claims nothing: the
enqueuer has its own record of what it has published.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retrysafe.core.jobs import Job
from retrysafe.errors import UsageError
from retrysafe.jobs.delivery import DeliveryOptions
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.jobs.queue_adapter import QueueAdapter


class QueuePublisher:
    """Sends staged jobs to a queue."""

    def __init__(self, adapter: QueueAdapter, task: FencedTask, delivery: DeliveryOptions) -> None:
        self._adapter = adapter
        self._task = task
        self._delivery = delivery

    def __call__(self, job: Job) -> Any:
        args, kwargs = read_arguments(job)
        id = self._task.key_of(args, kwargs) if self._task.template is not None else job.id
        return self._adapter.send(JobMessage(id, self._task.name, args, kwargs, again=True, delivery=self._delivery))


def read_arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments in a staged job's payload."""
    try:
        payload = json.loads(job.payload)
    except ValueError:
        payload = None
    if isinstance(payload, dict):
        return (), payload
    if isinstance(payload, list):
        return tuple(payload), {}
    raise UsageError(
        f"the job staged for {job.topic!r} cannot become a queue's job: its payload must be a JSON object (arguments "
        f"by name) or a list (by position), and is {bytes(job.payload[:40])!r}"
    )
