"""RQ: functions that run once.

    jobs = RqJobs(safe, Queue(connection=redis))

    @jobs.task(key="charge-{order_id}")
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

The function stays a function: the worker imports it by its name, and `queue.enqueue(charge, …)` works as usual.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rq import Queue, Retry, get_current_job
from rq.job import JobStatus

from retrysafe.errors import InProgress
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

BUSY_HOLD_SECONDS = 0.5
"""How long a worker holds a busy job before it goes back to the queue. RQ delays jobs only if a scheduler runs. Without
this pause a busy job would be delivered again and again without rest."""

UNLIMITED_RETRIES = 1_000_000
IMMEDIATE_ONLY_OPTIONS = ("at_front", "pipeline", "unique")
"""Options of `enqueue` that a scheduled job does not take."""
RESULT_TTL_SECONDS = 500.0
STARTED_GRACE_SECONDS = 60.0


class RqJobs(QueueAdapter):
    """Functions that run once per job, on an RQ queue."""

    queue = "RQ"

    def __init__(
        self, safe: RetrySafe, queue: Queue, *, enqueue_options: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """`enqueue_options` are the options that every job is enqueued with, such as `retry=` and `result_ttl=`."""
        super().__init__(safe, **options)
        self.rq = queue
        self.enqueue_options = dict(enqueue_options or {})
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        super().register(fenced, options)
        self._functions[fenced.name] = function = wrap_task(fenced)
        return function

    def send(self, message: JobMessage) -> Any:
        function, (countdown, name, _) = self._functions[message.task], message.delivery
        queue = self.rq if name is None else self._open_queue(name)
        call: dict[str, Any] = {"args": message.args, "kwargs": message.kwargs, "job_id": message.id}
        if countdown is None:
            return queue.enqueue_call(function, **call, **self.enqueue_options)
        options = {name: value for name, value in self.enqueue_options.items() if name not in IMMEDIATE_ONLY_OPTIONS}
        job = queue.create_job(function, status=JobStatus.SCHEDULED, **call, **options)
        return queue.schedule_job(job, datetime.now(UTC) + timedelta(seconds=countdown))

    def _open_queue(self, name: str) -> Queue:
        """Another queue with the settings of this one."""
        queue = self.rq
        return Queue(
            name,
            connection=queue.connection,
            default_timeout=queue._default_timeout,
            is_async=queue.is_async,
            job_class=queue.job_class,
            serializer=queue.serializer,
        )

    def unsupported_options(self) -> dict[str, str]:
        return {"priority": "a worker takes its queues in the order you name them, so use queue="}

    def settings(self) -> list[Setting]:
        ttl = self.enqueue_options.get("result_ttl")
        seconds = RESULT_TTL_SECONDS if ttl is None else float("inf") if ttl < 0 else float(ttl)
        loses = float(self.enqueue_options.get("retry") is None)
        fix = "enqueue_options={'retry': Retry(max=3)}"
        return [
            Setting("result_ttl", "keeps", seconds, "enqueue_options={'result_ttl': …}"),
            Setting("no retry=", "loses", loses, fix),
            Setting(
                "abandoned jobs", "notices", STARTED_GRACE_SECONDS, "run a worker: it looks for them every few minutes"
            ),
        ]


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
    """The function that RQ calls. In a worker it runs the task behind the fence; called directly, it is the plain
    function."""

    @functools.wraps(fenced.function)
    def run(*args: Any, **kwargs: Any) -> Any:
        job = get_current_job()
        if job is None:
            if fenced.template is None:
                return fenced.function(*args, **kwargs)
            return fenced.run("", args, kwargs)
        try:
            return fenced.run(job.id, args, kwargs, job)
        except InProgress:
            time.sleep(BUSY_HOLD_SECONDS)
            return Retry(max=UNLIMITED_RETRIES)

    run.fenced = fenced  # type: ignore[attr-defined]  # QueueAdapter.name_of reads it
    del run.__wrapped__  # the wrapper of an async function is not async
    return run
