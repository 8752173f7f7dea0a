"""Procrastinate: tasks that run once.

    jobs = ProcrastinateJobs(safe, app)

    @jobs.task(key="charge-{order_id}", retry=5)
    async def charge(order_id: str, cents: int) -> str: ...

    await jobs.aenqueue(charge, ("order-7", 500))

Procrastinate numbers its jobs itself, so the job's id travels in its `queueing_lock`, as `retrysafe:<id>`. A lock of
your own says which jobs may not wait at the same time; it does not identify a job. A job that you defer yourself is
identified by its number. A job whose worker was killed stays `doing` until stalled jobs are retried (Procrastinate's
docs say how) or the job is enqueued again with its key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from procrastinate import App, BaseRetryStrategy, JobContext, RetryDecision
from procrastinate.exceptions import AlreadyEnqueued, JobAborted, JobRetry
from procrastinate.jobs import Job
from procrastinate.retry import RetryStrategy

from retrysafe.engine.arguments import bind_arguments
from retrysafe.errors import InProgress
from retrysafe.jobs.delivery import compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

LOCK_PREFIX = "retrysafe:"
"""The prefix of a `queueing_lock` that retrysafe sets."""


class WaitOrRetryStrategy(BaseRetryStrategy):
    """Retry later while another worker runs the job; otherwise follow the task's own strategy."""

    def __init__(self, own_strategy: BaseRetryStrategy | None) -> None:
        self._own_strategy = own_strategy

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, InProgress):
            return RetryDecision(retry_in={"seconds": max(1, round(compute_busy_delay(exception)))})
        if self._own_strategy is None:
            return None
        retry = self._own_strategy.get_retry_exception(exception=exception, job=job)
        return retry.retry_decision if retry is not None else None


class ProcrastinateJobs(QueueAdapter):
    """Tasks of Procrastinate that run once per job."""

    queue = "Procrastinate"
    control: ClassVar[tuple[type[BaseException], ...]] = (JobRetry, JobAborted)

    def __init__(self, safe: RetrySafe, app: App, **options: Any) -> None:
        super().__init__(safe, **options)
        self.app = app

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        chosen = {**options, "retry": WaitOrRetryStrategy(build_retry_strategy(options.get("retry", False)))}
        return self.app.task(name=fenced.name, pass_context=True, **chosen)(wrap_task(fenced))

    def send(self, message: JobMessage) -> Any:
        with suppress(AlreadyEnqueued):  # the job is in the queue already, which is the purpose
            return self._build_deferrer(message).defer(**self._bind_by_name(message))

    async def asend(self, message: JobMessage) -> Any:
        with suppress(AlreadyEnqueued):
            return await self._build_deferrer(message).defer_async(**self._bind_by_name(message))

    def _build_deferrer(self, message: JobMessage) -> Any:
        countdown, queue, priority = message.delivery
        return self.app.tasks[message.task].configure(
            queueing_lock=f"{LOCK_PREFIX}{message.id}",
            schedule_in=None if countdown is None else {"milliseconds": round(countdown * 1000)},
            queue=queue,
            priority=priority,
        )

    def _bind_by_name(self, message: JobMessage) -> dict[str, Any]:
        """Procrastinate takes arguments by name only."""
        return bind_arguments(self.tasks[message.task].signature, message.args, message.kwargs)

    def settings(self) -> list[Setting]:
        fix = "retry stalled jobs in a periodic task, or enqueue again with the same key"
        return [Setting("stalled jobs stay in state doing", "loses", 1.0, fix)]


def build_retry_strategy(retry: bool | int | BaseRetryStrategy) -> BaseRetryStrategy | None:
    """The task's option `retry` as a strategy, by Procrastinate's own rules."""
    if isinstance(retry, BaseRetryStrategy):
        return retry
    if retry is False:
        return None
    return RetryStrategy() if retry is True else RetryStrategy(max_attempts=retry)


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
    """The function that Procrastinate calls: async if the task's function is async. Procrastinate runs plain functions
    in threads."""
    if fenced.is_async:

        @functools.wraps(fenced.function)
        async def run_async(context: JobContext, **kwargs: Any) -> Any:
            return await fenced.arun(read_job_id(context.job), (), kwargs, context)

        return run_async

    @functools.wraps(fenced.function)
    def run_sync(context: JobContext, **kwargs: Any) -> Any:
        return fenced.run(read_job_id(context.job), (), kwargs, context)

    return run_sync


def read_job_id(job: Job) -> str:
    """The job's id, from a lock that retrysafe set, or made of Procrastinate's number. A lock of the user's is used
    again for the next job, such as tomorrow's report after today's: as an id it would make the next job a
    repetition."""
    lock = job.queueing_lock or ""
    return lock.removeprefix(LOCK_PREFIX) if lock.startswith(LOCK_PREFIX) else f"procrastinate-{job.id}"
