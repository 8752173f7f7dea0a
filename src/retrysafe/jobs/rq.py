"""RQ: functions that run once.

    jobs = RqJobs(safe, Queue(connection=redis))

    @jobs.task(key="charge-{order_id}")
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

The function stays a function: the worker imports it by its name, and `queue.enqueue(charge, …)` works as ever.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rq import Queue, Retry, get_current_job

from retrysafe.errors import InProgress
from retrysafe.jobs.enqueueing import Message
from retrysafe.jobs.fence import Fence
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

HOLD = 0.5
"""Seconds a busy job stays with its worker before it goes back to the queue. RQ delays jobs only where a scheduler
runs, and without a pause they would go round as fast as they can."""

ENDLESS = 1_000_000
RESULT_TTL = 500.0
STARTED_GRACE = 60.0


class RqJobs(Fence):
    queue = "RQ"

    def __init__(
        self, safe: RetrySafe, queue: Queue, *, enqueue_options: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """`enqueue_options`: what every job is enqueued with, such as `retry=` and `result_ttl=`."""
        super().__init__(safe, **options)
        self.rq = queue
        self.enqueue_options = dict(enqueue_options or {})
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        super().register(fenced, options)
        self._functions[fenced.name] = made = body(fenced)
        return made

    def send(self, message: Message) -> Any:
        function = self._functions[message.task]
        return self.rq.enqueue_call(
            function, args=message.args, kwargs=message.kwargs, job_id=message.id, **self.enqueue_options
        )

    def settings(self) -> list[Setting]:
        kept = self.enqueue_options.get("result_ttl")
        seconds = RESULT_TTL if kept is None else float("inf") if kept < 0 else float(kept)
        lost = float(self.enqueue_options.get("retry") is None)
        fix = "enqueue_options={'retry': Retry(max=3)}"
        return [
            Setting("result_ttl", "keeps", seconds, "enqueue_options={'result_ttl': …}"),
            Setting("no retry=", "loses", lost, fix),
            Setting("abandoned jobs", "notices", STARTED_GRACE, "run a worker: it looks for them every few minutes"),
        ]


def body(fenced: FencedTask) -> Callable[..., Any]:
    """What RQ calls: in a worker the fence, called directly the function itself."""

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
            time.sleep(HOLD)
            return Retry(max=ENDLESS)

    run.fenced = fenced  # type: ignore[attr-defined]  # how enqueue finds it again
    del run.__wrapped__  # an async function's wrapper is not async
    return run
