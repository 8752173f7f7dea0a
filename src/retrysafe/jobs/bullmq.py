"""BullMQ (the Python package): jobs that run once.

    jobs = BullJobs(safe, "payments", {"connection": "redis://localhost"})

    @jobs.task(name="charge", key="charge-{order_id}")
    async def charge(order_id: str, cents: int) -> str: ...

    worker = jobs.worker()
    await jobs.aenqueue(charge, ("order-7", 500))

A job's data is `{"args": […], "kwargs": {…}}`. Producers in Node may add jobs of that shape, each with its own `jobId`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, urlencode

from bullmq import Job, Queue, Worker
from bullmq.custom_errors import DelayedError, WaitingChildrenError

from retrysafe.errors import InProgress, UsageError
from retrysafe.jobs.delivery import ClientPerLoop, compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

STALLED_INTERVAL_SECONDS = 30.0
ENDED_STATES = ("failed", "completed", "unknown")

DRAIN_DELAY_SECONDS, MAX_BLOCK_SECONDS = 5.0, 10.0
"""How long BullMQ's worker blocks: on an empty queue (`drainDelay`), and at most until a delayed job is due."""
READ_GRACE_SECONDS = 20.0
"""Added to the blocking time before a read times out: a reply may be late on a machine that stalls."""


class BullJobs(QueueAdapter):
    """Jobs of one BullMQ queue that run once."""

    queue = "BullMQ"
    control: ClassVar[tuple[type[BaseException], ...]] = (DelayedError, WaitingChildrenError)

    def __init__(
        self,
        safe: RetrySafe,
        name: str,
        opts: dict[str, Any] | None = None,
        *,
        job_opts: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`opts` are BullMQ's options for queue and worker; `job_opts` are the options that every job is added with."""
        super().__init__(safe, **options)
        self.name = name
        self.opts = dict(opts or {})
        self.job_opts = dict(job_opts or {})
        self._queues = ClientPerLoop(self._open_queue)

    async def _open_queue(self) -> Any:
        return Queue(self.name, self.opts)

    def worker(self, **opts: Any) -> Any:
        """A BullMQ worker on the running loop, for every task declared here.

        The read timeout of its connection is longer than the worker blocks: see `with_read_timeout`.
        """
        chosen = {**self.opts, **opts}
        if chosen.get("backend") != "postgres":
            blocks = max(float(chosen.get("drainDelay", DRAIN_DELAY_SECONDS)), MAX_BLOCK_SECONDS)
            chosen["connection"] = with_read_timeout(chosen.get("connection", {}), blocks + READ_GRACE_SECONDS)
        return Worker(self.name, self.process, chosen)

    async def process(self, job: Any, token: str) -> Any:
        """The processor function, for a `Worker` that you make yourself."""
        data = job.data if isinstance(job.data, dict) else {}
        if not {"args", "kwargs"} & data.keys():
            raise UsageError(f"job {job.id!r} has data {job.data!r}; it should be {{'args': […], 'kwargs': {{…}}}}")
        try:
            args, kwargs = tuple(data.get("args", ())), dict(data.get("kwargs", {}))
            return await self.find(job.name).arun(str(job.id), args, kwargs, job)
        except InProgress as busy:
            await job.moveToDelayed(round((time.time() + compute_busy_delay(busy)) * 1000), token)
            raise DelayedError from busy

    async def asend(self, message: JobMessage) -> Any:
        queue = await self._queues.get()
        if message.again:
            # BullMQ ignores a job whose id it still has, and it keeps the job whose last attempt failed.
            ended_job = await Job.fromId(queue, message.id)
            if ended_job is not None and await ended_job.getState() in ENDED_STATES:
                await ended_job.remove()
        data = {"args": list(message.args), "kwargs": message.kwargs}
        countdown, _, priority = message.delivery
        chosen = {**self.job_opts, "jobId": message.id}
        if countdown is not None:
            chosen["delay"] = round(countdown * 1000)
        if priority is not None:
            chosen["priority"] = priority
        return await queue.add(message.task, data, chosen)

    def unsupported_options(self) -> dict[str, str]:
        return {"queue": f"this BullJobs is the queue {self.name!r}; make another one for another queue"}

    async def aclose(self) -> None:
        """Close the running loop's connection to the queue."""
        queue = self._queues.get_existing()
        if queue is not None:
            await queue.close()

    def settings(self) -> list[Setting]:
        interval = float(self.opts.get("stalledInterval", STALLED_INTERVAL_SECONDS * 1000)) / 1000
        removal = self.job_opts.get("removeOnComplete", self.opts.get("removeOnComplete", False))
        kept_seconds = float("inf")
        if removal:
            kept_seconds = float(removal.get("age", 0)) if isinstance(removal, dict) else 0.0
        return [
            Setting("removeOnComplete", "keeps", kept_seconds, "job_opts={'removeOnComplete': {'age': …}}"),
            Setting("stalledInterval", "notices", interval, "opts={'stalledInterval': 30000}"),
        ]


def with_read_timeout(connection: Any, seconds: float) -> Any:
    """BullMQ's option `connection`, with a read timeout of at least `seconds`.

    By default a read of redis-py 8 times out after 5 s, and BullMQ's worker blocks for 5 s and longer. BullMQ repeats
    the read that timed out up to twenty times, with pauses of up to 20 s. During that time it does not check whether a
    delayed job is due, unless a new job arrives. A client of your own is used as it is.
    """
    if isinstance(connection, str):
        address, _, options = connection.partition("?")
        query = dict(parse_qsl(options))
        timeout = max(float(query.get("socket_timeout", 0)), seconds)
        return f"{address}?{urlencode({**query, 'socket_timeout': f'{timeout:g}'})}"
    if isinstance(connection, Mapping):
        given_timeout = connection.get("socket_timeout", 0)  # None: no timeout
        return {**connection, "socket_timeout": None if given_timeout is None else max(given_timeout, seconds)}
    return connection
