"""From threads, a Taskiq broker sends on the loop it was started on: RabbitMQ's one connection belongs to that loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from taskiq import AsyncBroker, BrokerMessage

from retrysafe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.jobs.taskiq import TaskiqJobs


class OneLoopBroker(AsyncBroker):
    """A broker that `startup` connects, and that works on that loop only."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.homes: list[asyncio.AbstractEventLoop] = []
        self.kicked: list[str] = []

    async def startup(self) -> None:
        await super().startup()
        await asyncio.sleep(0)  # connecting takes a while, and other callers arrive meanwhile
        if self.failures:
            self.failures -= 1
            raise ConnectionError("nobody there")
        self.homes.append(asyncio.get_running_loop())

    async def kick(self, message: BrokerMessage) -> None:
        assert self.homes, "not started"
        assert self.homes[-1] is asyncio.get_running_loop()
        self.kicked.append(message.task_id)

    async def listen(self) -> AsyncGenerator[bytes, None]:
        for nothing in ():
            yield nothing


def jobs_on(broker: AsyncBroker) -> TaskiqJobs:
    jobs = TaskiqJobs(RetrySafe("memory://"), broker)
    jobs.task(name="charge")(lambda order: order)
    return jobs


def test_a_broker_that_nobody_started_is_started_once() -> None:
    broker, together = OneLoopBroker(), Barrier(4)
    jobs = jobs_on(broker)

    def enqueue(order: int) -> bool:
        together.wait()
        return jobs.enqueue("charge", (order,), key=f"job-{order}").sent

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(enqueue, range(4)))
    assert sorted(broker.kicked) == [f"job-{order}" for order in range(4)]
    assert len(broker.homes) == 1


async def test_a_broker_of_a_loop_sends_on_it() -> None:
    broker = OneLoopBroker()
    jobs = jobs_on(broker)
    await broker.startup()
    assert (await asyncio.to_thread(jobs.enqueue, "charge", (1,), key="from-a-thread")).sent
    assert (await jobs.aenqueue("charge", (2,), key="from-the-loop")).sent
    assert broker.kicked == ["from-a-thread", "from-the-loop"]
    assert broker.homes == [asyncio.get_running_loop()]


async def test_the_broker_s_own_loop_must_not_be_blocked() -> None:
    broker = OneLoopBroker()
    jobs = jobs_on(broker)
    await broker.startup()
    with pytest.raises(UsageError, match="await aenqueue"):
        jobs.enqueue("charge", (1,), key="job-1")
    assert jobs.enqueue("charge", (2,), key="job-2", send=lambda message: None).sent


@pytest.mark.parametrize("tidy", [True, False])
def test_a_broker_whose_loop_has_ended_is_started_again(tidy: bool) -> None:
    broker = OneLoopBroker()
    jobs = jobs_on(broker)

    async def visit() -> None:
        await broker.startup()
        if tidy:
            await broker.shutdown()

    asyncio.run(visit())
    assert jobs.enqueue("charge", (1,), key="job-1").sent
    assert (broker.kicked, len(broker.homes)) == (["job-1"], 2)


def test_a_broker_that_could_not_be_started_is_started_by_the_next() -> None:
    broker = OneLoopBroker(failures=1)
    jobs = jobs_on(broker)
    with pytest.raises(ConnectionError):
        jobs.enqueue("charge", (1,), key="job-1")
    assert jobs.enqueue("charge", (2,), key="job-2").sent
    assert broker.kicked == ["job-2"]
