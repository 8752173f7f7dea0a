"""Jobs that run once per key: a queue-independent adapter, and one adapter per queue.

`retrysafe.jobs.celery`, `.dramatiq`, `.rq`, `.arq`, `.taskiq`, `.bullmq`, `.huey` and `.procrastinate` each need their
queue installed; this package alone needs none.
"""

from __future__ import annotations

from retrysafe.core.deprecation import renamed_names
from retrysafe.jobs.enqueue_flow import JobMessage, JobState
from retrysafe.jobs.ids import RunningJob, current_job, job_id, saga_id, saga_step, step_key
from retrysafe.jobs.queue_adapter import Enqueued, QueueAdapter
from retrysafe.jobs.task import JOB, FencedTask

__all__ = [
    "JOB",
    "Enqueued",
    "FencedTask",
    "JobMessage",
    "JobState",
    "QueueAdapter",
    "RunningJob",
    "current_job",
    "job_id",
    "saga_id",
    "saga_step",
    "step_key",
]

__getattr__ = renamed_names("retrysafe.jobs", {"Fence": "QueueAdapter", "Message": "JobMessage"})
