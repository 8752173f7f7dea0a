"""Jobs that run once: a fence for any task function, and one adapter per queue.

`retrysafe.jobs.celery`, `.dramatiq`, `.rq`, `.arq`, `.taskiq`, `.bullmq`, `.huey` and `.procrastinate` each need their
queue installed; this file needs none.
"""

from __future__ import annotations

from retrysafe.core.deprecation import renamed_names
from retrysafe.jobs.enqueue_flow import JobState, Message
from retrysafe.jobs.ids import job_id, step_key
from retrysafe.jobs.job_context import RunningJob, current_job
from retrysafe.jobs.queue_adapter import Enqueued, QueueAdapter
from retrysafe.jobs.sagas import saga_id, saga_step
from retrysafe.jobs.task import JOB, FencedTask

__all__ = [
    "JOB",
    "Enqueued",
    "FencedTask",
    "JobState",
    "Message",
    "QueueAdapter",
    "RunningJob",
    "current_job",
    "job_id",
    "saga_id",
    "saga_step",
    "step_key",
]

__getattr__ = renamed_names("retrysafe.jobs", {"Fence": "QueueAdapter"})
