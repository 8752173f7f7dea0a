"""Procrastinate: tasks that run once.

    jobs = ProcrastinateJobs(safe, app)

    @jobs.task(key="charge-{order_id}", retry=5)
    async def charge(order_id: str, cents: int) -> str: ...

    await jobs.aenqueue(charge, ("order-7", 500))

Procrastinate numbers its jobs itself, so our id travels in its `queueing_lock`, as `retrysafe:<id>`. A lock of your own
says which jobs may not wait at the same time, and not which job it is: a job that you defer yourself is known by its
number. A job whose worker was killed stays `doing` until somebody retries stalled jobs (Procrastinate's docs say
how) or enqueues it again with its key.
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
from retrysafe.jobs.busy_delay import compute_busy_delay
from retrysafe.jobs.enqueue_flow import Message
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

LOCK_PREFIX = "retrysafe:"
"""What a `queueing_lock` begins with that is ours."""


class WaitOrRetryStrategy(BaseRetryStrategy):
    """Later, while another worker is at it; otherwise as the task says."""

    def __init__(self, otherwise: BaseRetryStrategy | None) -> None:
        self._otherwise = otherwise

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, InProgress):
            return RetryDecision(retry_in={"seconds": max(1, round(compute_busy_delay(exception)))})
        if self._otherwise is None:
            return None
        asked = self._otherwise.get_retry_exception(exception=exception, job=job)
        return asked.retry_decision if asked is not None else None


class ProcrastinateJobs(QueueAdapter):
    queue = "Procrastinate"
    control: ClassVar[tuple[type[BaseException], ...]] = (JobRetry, JobAborted)

    def __init__(self, safe: RetrySafe, app: App, **options: Any) -> None:
        super().__init__(safe, **options)
        self.app = app

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        chosen = {**options, "retry": WaitOrRetryStrategy(build_retry_strategy(options.get("retry", False)))}
        return self.app.task(name=fenced.name, pass_context=True, **chosen)(wrap_task(fenced))

    def send(self, message: Message) -> Any:
        with suppress(AlreadyEnqueued):  # it is in the queue: that is what was asked for
            return self._build_deferrer(message).defer(**self._bind_by_name(message))

    async def asend(self, message: Message) -> Any:
        with suppress(AlreadyEnqueued):
            return await self._build_deferrer(message).defer_async(**self._bind_by_name(message))

    def _build_deferrer(self, message: Message) -> Any:
        countdown, queue, priority = message.delivery
        return self.app.tasks[message.task].configure(
            queueing_lock=f"{LOCK_PREFIX}{message.id}",
            schedule_in=None if countdown is None else {"milliseconds": round(countdown * 1000)},
            queue=queue,
            priority=priority,
        )

    def _bind_by_name(self, message: Message) -> dict[str, Any]:
        """Procrastinate takes arguments by name only."""
        return bind_arguments(self.tasks[message.task].signature, message.args, message.kwargs)

    def settings(self) -> list[Setting]:
        fix = "retry stalled jobs in a periodic task, or enqueue again with the same key"
        return [Setting("stalled jobs stay in state doing", "loses", 1.0, fix)]


def build_retry_strategy(retry: bool | int | BaseRetryStrategy) -> BaseRetryStrategy | None:
    if isinstance(retry, BaseRetryStrategy):
        return retry
    if retry is False:
        return None
    return RetryStrategy() if retry is True else RetryStrategy(max_attempts=retry)


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
    """In the colour of the function: Procrastinate runs plain ones in threads."""
    if fenced.is_async:

        @functools.wraps(fenced.function)
        async def awaited(context: JobContext, **kwargs: Any) -> Any:
            return await fenced.arun(read_job_id(context.job), (), kwargs, context)

        return awaited

    @functools.wraps(fenced.function)
    def called(context: JobContext, **kwargs: Any) -> Any:
        return fenced.run(read_job_id(context.job), (), kwargs, context)

    return called


def read_job_id(job: Job) -> str:
    """Only a lock of ours names the job. One of the user's is used again for the next job, tomorrow's report after
    today's, and taken for its name it would make a repetition of it."""
    lock = job.queueing_lock or ""
    return lock.removeprefix(LOCK_PREFIX) if lock.startswith(LOCK_PREFIX) else f"procrastinate-{job.id}"
