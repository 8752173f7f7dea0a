"""A delivery of a job that another worker runs: the job does not run, it is delivered again, and no retry is used up.

    python -m tests.jobs.busy REDIS_URL

Each queue has a worker in this process, on a broker in memory if it has one. Prints one line of JSON: what went wrong
with each queue, or nothing. This is a process of its own, because the libraries leave connections open, which pytest
reports.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import dramatiq
import procrastinate
from celery import Celery
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.stub import StubBroker
from huey import MemoryHuey
from procrastinate.testing import InMemoryConnector
from redis import Redis
from redis.connection import parse_url
from rq import Queue, SimpleWorker
from rq import Retry as RqRetry
from taskiq import InMemoryBroker

from retrysafe import RetrySafe
from retrysafe.core.ops import Release
from retrysafe.jobs import JobMessage, QueueAdapter
from retrysafe.jobs.bullmq import BullJobs
from retrysafe.jobs.celery import CeleryJobs
from retrysafe.jobs.dramatiq import DramatiqJobs
from retrysafe.jobs.huey import HueyJobs
from retrysafe.jobs.procrastinate import ProcrastinateJobs
from retrysafe.jobs.rq import RqJobs
from retrysafe.jobs.task import BUSY_PAUSES_SECONDS
from retrysafe.jobs.taskiq import TaskiqJobs
from tests.waiting import until

TIMEOUT_SECONDS = 300.0
runs: dict[str, list[int]] = {}
"""The runs of each queue, by the job's first argument."""


class Other:
    """Another worker, which runs the job until it is released."""

    def __init__(self, jobs: QueueAdapter, name: str, id: str = "job-1") -> None:
        self._safe = jobs.safe
        task = jobs.find("charge").build_task(id, (name,), {})
        reply = self._safe.execute(task.build_claim())
        assert reply.granted
        assert reply.record is not None
        self._release = Release(reply.record.id, reply.record.fence)

    def release(self) -> None:
        assert self._safe.execute(self._release)

    def release_after_delivery(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: (self.came(), self.release()))
        thread.start()
        return thread

    def came(self) -> None:
        # A delivery checks the job a few times before it goes back to the queue.
        looks = len(BUSY_PAUSES_SECONDS) + 1
        until(lambda: self._safe.counters.get("busy", 0) >= looks, TIMEOUT_SECONDS, "a delivery that gave up")


def message(name: str) -> JobMessage:
    return JobMessage("job-1", "charge", (name,), {})


def on_celery(safe: RetrySafe, name: str, redis_url: str) -> None:
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    jobs = CeleryJobs(safe, app)

    @jobs.task(name="charge", context=True, max_retries=0)
    def charge(task: Any, name: str) -> int:
        runs[name].append(task.request.retries)
        return 7

    other = Other(jobs, name)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=TIMEOUT_SECONDS):
        jobs.send(message(name))
        other.came()
        assert runs[name] == []
        other.release()
        assert jobs.result("job-1", wait=TIMEOUT_SECONDS) == 7
    assert runs[name] == [0]


def on_dramatiq(safe: RetrySafe, name: str, redis_url: str) -> None:
    broker = StubBroker()
    jobs = DramatiqJobs(safe, broker)

    @jobs.task(name="charge", context=True, max_retries=0)
    def charge(message: Any, name: str) -> None:
        runs[name].append(message.options["retries"])

    other = Other(jobs, name)
    worker = dramatiq.Worker(broker, worker_timeout=100)
    worker.start()
    try:
        jobs.send(message(name))
        other.came()
        assert runs[name] == []
        other.release()
        assert jobs.result("job-1", wait=TIMEOUT_SECONDS) is None
        assert jobs.state("job-1") == "done"
    finally:
        worker.stop()
    assert runs[name] == [0]
    assert broker.dead_letters == []


def on_huey(safe: RetrySafe, name: str, redis_url: str) -> None:
    huey = MemoryHuey()
    jobs = HueyJobs(safe, huey)

    @jobs.task(name="charge")
    def charge(name: str) -> int:
        runs[name].append(0)
        return 7

    other = Other(jobs, name)
    jobs.send(message(name))
    huey.execute(huey.dequeue())
    assert runs[name] == []
    assert huey.scheduled_count() == 1
    other.release()
    (back,) = huey.read_schedule(datetime.datetime(9999, 1, 1))
    assert (back.id, back.retries) == ("job-1", 0)
    huey.execute(back, datetime.datetime(9999, 1, 1))
    assert (jobs.result("job-1"), runs[name]) == (7, [0])


def rq_charge(name: str) -> int:
    runs[name].append(0)
    return 7


class QuietWorker(SimpleWorker):
    def _install_signal_handlers(self) -> None:
        """pytest has its own signal handlers."""


def on_rq(safe: RetrySafe, name: str, redis_url: str) -> None:
    connection = Redis.from_url(redis_url)
    queue = Queue(name, connection=connection)
    jobs = RqJobs(safe, queue, enqueue_options={"retry": RqRetry(max=1), "result_ttl": 60})
    wrapped = jobs.task(name="charge")(rq_charge)
    wrapped.__module__ = "tests.jobs.busy"  # RQ finds it by name
    sys.modules["tests.jobs.busy"] = sys.modules[__name__]
    globals()["rq_charge"] = wrapped
    # RQ's ids are unique in the whole database, so this test uses its own id.
    other = Other(jobs, name, f"job-{name}")
    jobs.send(message(name)._replace(id=f"job-{name}"))
    waiting = other.release_after_delivery()
    QuietWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")
    waiting.join()
    assert jobs.result(f"job-{name}") == 7
    job = queue.fetch_job(f"job-{name}")
    assert job is not None
    assert (job.return_value(), job.retries_left, runs[name]) == (7, 1, [0])
    job.delete()
    connection.close()


async def on_taskiq(safe: RetrySafe, name: str, redis_url: str) -> None:
    broker = InMemoryBroker()
    jobs = TaskiqJobs(safe, broker)

    @jobs.task(name="charge")
    async def charge(name: str) -> int:
        runs[name].append(0)
        return 7

    await broker.startup()
    other = Other(jobs, name)
    await jobs.asend(message(name))
    await asyncio.to_thread(other.came)
    assert runs[name] == []
    other.release()
    assert await jobs.aresult("job-1", wait=TIMEOUT_SECONDS) == 7
    assert runs[name] == [0]
    await broker.shutdown()


async def on_bullmq(safe: RetrySafe, name: str, redis_url: str) -> None:
    # This read timeout is shorter than a busy job's delay and than the worker blocks: the adapter must raise it.
    jobs = BullJobs(safe, name, {"connection": {**parse_url(redis_url), "socket_timeout": 1}})

    @jobs.task(name="charge", context=True)
    async def charge(job: Any, name: str) -> int:
        runs[name].append(job.attemptsMade)
        return 7

    other = Other(jobs, name)
    await jobs.asend(message(name))
    worker = jobs.worker(autorun=False)
    working = asyncio.ensure_future(worker.run())
    await asyncio.to_thread(other.came)
    assert runs[name] == []
    other.release()
    assert await jobs.aresult("job-1", wait=TIMEOUT_SECONDS) == 7
    assert runs[name] == [0]
    await worker.close(force=True)
    working.cancel()
    await jobs.aclose()


async def on_procrastinate(safe: RetrySafe, name: str, redis_url: str) -> None:
    app = procrastinate.App(connector=InMemoryConnector())
    jobs = ProcrastinateJobs(safe, app)

    @jobs.task(name="charge")
    async def charge(name: str) -> int:
        runs[name].append(0)
        return 7

    async with app.open_async():
        other = Other(jobs, name)
        await jobs.asend(message(name))
        working = asyncio.ensure_future(
            app.run_worker_async(fetch_job_polling_interval=0.05, install_signal_handlers=False)
        )
        await asyncio.to_thread(other.came)
        assert runs[name] == []
        other.release()
        assert await jobs.aresult("job-1", wait=TIMEOUT_SECONDS) == 7
        assert runs[name] == [0]
        working.cancel()
        await asyncio.wait([working])


QUEUES: dict[str, Callable[..., Any]] = {
    "celery": on_celery,
    "dramatiq": on_dramatiq,
    "rq": on_rq,
    "taskiq": on_taskiq,
    "bullmq": on_bullmq,
    "huey": on_huey,
    "procrastinate": on_procrastinate,
}


def outcome(case: Callable[..., Any], redis_url: str) -> str:
    """What went wrong; empty if nothing did."""
    name = uuid4().hex
    runs[name] = []
    try:
        done = case(RetrySafe("memory://"), name, redis_url)
        if inspect.iscoroutine(done):
            asyncio.run(done)
    except BaseException:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    print(json.dumps({queue: outcome(case, sys.argv[1]) for queue, case in QUEUES.items()}), flush=True)
    os._exit(0)  # libraries keep threads
