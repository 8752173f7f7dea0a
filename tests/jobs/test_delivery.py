"""`countdown=`, `queue=` and `priority=` reach each queue that supports them; any other queue refuses them."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import procrastinate
import pytest
from celery import Celery
from celery.signals import before_task_publish
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.stub import StubBroker
from huey import MemoryHuey
from huey.storage import RedisStorage
from procrastinate.testing import InMemoryConnector
from redis import Redis
from rq import Queue
from taskiq import InMemoryBroker
from taskiq_aio_pika import AioPikaBroker
from taskiq_aio_pika import Queue as RabbitQueue
from taskiq_redis import ListQueueBroker

from retrysafe import RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.errors import UsageError
from retrysafe.jobs import JobMessage, QueueAdapter
from retrysafe.jobs.bullmq import BullJobs
from retrysafe.jobs.celery import CeleryJobs
from retrysafe.jobs.delivery import DeliveryOptions
from retrysafe.jobs.dramatiq import DramatiqJobs
from retrysafe.jobs.huey import HueyJobs
from retrysafe.jobs.procrastinate import ProcrastinateJobs
from retrysafe.jobs.rq import RqJobs
from retrysafe.jobs.taskiq import TaskiqJobs
from tests.jobs.test_arq import run as run_arq
from tests.jobs.test_fence import Shop
from tests.opening import unique

HOUR = 3600.0
SLACK_SECONDS = 600.0
"""Seconds that a busy machine may take between two lines of a test."""


def charge(order: str) -> str:
    return order


def about_an_hour_from_now(moment: float) -> bool:
    return 0 <= time.time() + HOUR - moment < SLACK_SECONDS


def store() -> RetrySafe:
    return RetrySafe("memory://")


# Every queue ----------------------------------------------------------------------------------------------


def test_a_sender_of_your_own_finds_it_in_the_message() -> None:
    shop = Shop()
    shop.enqueue(shop.task(), "o-7", key="k", countdown=5, queue="slow", priority=3)
    assert shop.queue[-1].delivery == DeliveryOptions(5, "slow", 3)


def test_it_is_no_part_of_what_the_job_is() -> None:
    shop = Shop()
    task = shop.task()
    shop.enqueue(task, "o-7", key="k", countdown=5, queue="slow", priority=3)
    assert shop.enqueue(task, "o-7", key="k").sent is False


def test_a_job_that_waits_on_purpose_is_not_sent_again() -> None:
    """A job counts as lost only after its countdown and `resend_after`."""
    shop = Shop()
    task = shop.task()
    shop.enqueue(task, "o-7", key="k", countdown=HOUR, resend_after=0.0)
    assert shop.enqueue(task, "o-7", key="k", countdown=HOUR, resend_after=0.0).sent is False
    assert shop.enqueue(task, "o-7", key="k", resend_after=0.0).sent


@pytest.mark.parametrize(
    "wrong",
    [{"countdown": -1}, {"countdown": float("nan")}, {"countdown": float("inf")}, {"countdown": "5"},
     {"countdown": True}, {"queue": ""}, {"queue": 7}, {"priority": 1.5}, {"priority": "high"}, {"priority": True}],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    shop = Shop()
    with pytest.raises(UsageError, match=next(iter(wrong))):
        shop.enqueue(shop.task(), "o-7", key="k", **wrong)
    assert shop.queue == []
    assert shop.jobs.state("k") == "absent", "refused before anything was claimed"


def test_the_outbox_passes_it_on() -> None:
    sent: list[JobMessage] = []

    class Listed(QueueAdapter):
        def send(self, message: JobMessage) -> None:
            sent.append(message)

    jobs = Listed(store())
    jobs.publisher(jobs.fence(charge, name="charge"), queue="slow", priority=1)(Job("0" * 32, "paid", b'["o-7"]'))
    assert sent[0].delivery == DeliveryOptions(None, "slow", 1)


# Each queue -----------------------------------------------------------------------------------------------


def test_celery() -> None:
    seen: list[dict[str, Any]] = []

    def publish(routing_key: str, headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
        seen.append({"queue": routing_key, "eta": headers["eta"], "priority": properties.get("priority")})

    jobs = CeleryJobs(store(), Celery("app", broker="memory://"))
    task = jobs.task(name="charge")(charge)
    before_task_publish.connect(publish)
    try:
        jobs.enqueue(task, ("o-7",), key="a")
        jobs.enqueue(task, ("o-7",), key="b", countdown=HOUR, queue="slow", priority=3)
    finally:
        before_task_publish.disconnect(publish)
    assert seen[0]["eta"] is None
    assert (seen[1]["queue"], seen[1]["priority"]) == ("slow", 3)
    assert about_an_hour_from_now(datetime.datetime.fromisoformat(seen[1]["eta"]).timestamp())


def test_dramatiq() -> None:
    broker = StubBroker()
    jobs = DramatiqJobs(store(), broker)
    task = jobs.task(name="charge")(charge)
    jobs.enqueue(task, ("o-7",), key="a")
    jobs.enqueue(task, ("o-7",), key="b", countdown=HOUR, queue="slow")
    assert broker.queues["default"].qsize() == 1
    later = dramatiq.Message.decode(broker.queues["slow.DQ"].get_nowait())
    assert later.message_id == "b"
    assert about_an_hour_from_now(later.options["eta"] / 1000)
    with pytest.raises(UsageError, match=r"Dramatiq cannot do that here.*max_priority"):
        jobs.enqueue(task, ("o-7",), key="c", priority=1)
    assert jobs.state("c") == "absent"
    assert "priority" not in DramatiqJobs(store(), RabbitmqBroker(max_priority=9)).unsupported_options()
    broker.close()


def test_rq(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        queue, slow = Queue(unique("rq"), connection=redis), unique("slow")
        jobs = RqJobs(store(), queue, enqueue_options={"result_ttl": 77, "at_front": True})
        task = jobs.task(name="charge")(charge)
        jobs.enqueue(task, ("o-7",), key=unique("a"))
        assert len(queue.job_ids) == 1
        enqueued = jobs.enqueue(task, ("o-7",), key=unique("b"), countdown=HOUR, queue=slow)
        waiting = Queue(slow, connection=redis).scheduled_job_registry
        assert waiting.get_job_ids() == [enqueued.id]
        assert about_an_hour_from_now(waiting.get_scheduled_time(enqueued.id).timestamp())
        job = Queue(slow, connection=redis).fetch_job(enqueued.id)
        assert job is not None
        assert (job.result_ttl, job.args) == (77, ("o-7",))
        jobs.enqueue(task, ("o-7",), key=unique("c"), queue=slow)
        assert len(Queue(slow, connection=redis).job_ids) == 1
        with pytest.raises(UsageError, match=r"RQ cannot do that here.*use queue="):
            jobs.enqueue(task, ("o-7",), key="d", priority=1)


def test_huey() -> None:
    huey = MemoryHuey(unique("huey"), immediate=False)
    jobs = HueyJobs(store(), huey)
    task = jobs.task(name="charge")(charge)
    jobs.enqueue(task, ("o-7",), key="low", priority=1)
    jobs.enqueue(task, ("o-7",), key="high", priority=5)
    assert [each.id for each in huey.pending()] == ["high", "low"]
    jobs.enqueue(task, ("o-7",), key="later", countdown=HOUR)
    (later,) = [each for each in huey.pending() if each.id == "later"]
    assert about_an_hour_from_now(later.eta.replace(tzinfo=datetime.UTC).timestamp())
    with pytest.raises(UsageError, match=r"Huey cannot do that here.*another Huey"):
        jobs.enqueue(task, ("o-7",), key="d", queue="slow")
    huey.storage.__class__ = type("Listed", (huey.storage.__class__,), {"priority": RedisStorage.priority})
    with pytest.raises(UsageError, match="PriorityRedisHuey"):
        jobs.enqueue(task, ("o-7",), key="e", priority=1)


def test_procrastinate() -> None:
    app = procrastinate.App(connector=InMemoryConnector())
    jobs = ProcrastinateJobs(store(), app)
    task = jobs.task(name="charge")(charge)
    jobs.enqueue(task, ("o-7",), key="a")
    jobs.enqueue(task, ("o-7",), key="b", countdown=HOUR, queue="slow", priority=3)
    plain, chosen = app.job_manager.list_jobs()
    assert (plain.queue, plain.priority, plain.scheduled_at) == ("default", 0, None)
    assert (chosen.queue, chosen.priority) == ("slow", 3)
    assert chosen.scheduled_at is not None
    assert about_an_hour_from_now(chosen.scheduled_at.timestamp())


async def test_bullmq(redis_url: str) -> None:
    jobs = BullJobs(store(), unique("bull"), {"connection": redis_url})
    task = jobs.task(name="charge")(charge)
    await jobs.aenqueue(task, ("o-7",), key="b", countdown=HOUR, priority=3)
    from bullmq import Job as BullJob

    found = await BullJob.fromId(await jobs._queues.get(), "b")
    assert found is not None
    assert (found.delay, found.priority) == (HOUR * 1000, 3)
    with pytest.raises(UsageError, match=r"BullMQ cannot do that here.*make another one"):
        await jobs.aenqueue(task, ("o-7",), key="c", queue="slow")
    await jobs.aclose()


async def test_taskiq(redis_url: str) -> None:
    slow = unique("slow")
    broker = ListQueueBroker(redis_url, queue_name=unique("taskiq"))
    jobs = TaskiqJobs(store(), broker)
    task = jobs.task(name="charge")(charge)
    await broker.startup()
    await jobs.aenqueue(task, ("o-7",), key="a", queue=slow)
    with Redis.from_url(redis_url) as redis:
        assert json.loads(redis.lrange(slow, 0, -1)[0])["task_id"] == "a"
    for option in ("countdown", "priority"):
        with pytest.raises(UsageError, match=r"Taskiq cannot do that here.*AioPikaBroker"):
            await jobs.aenqueue(task, ("o-7",), key="b", **{option: 1})
    await broker.shutdown()


def rabbit(**options: Any) -> AioPikaBroker:
    return AioPikaBroker("amqp://localhost/", **options)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (InMemoryBroker, {"countdown", "queue", "priority"}),
        (rabbit, {"countdown", "queue", "priority"}),
        (lambda: rabbit(delay_queue=RabbitQueue(name="later")), {"queue", "priority"}),
        (lambda: rabbit().with_queues(RabbitQueue(name="a", max_priority=9), RabbitQueue(name="b")), {"countdown"}),
    ],
)
def test_what_brokers_of_taskiq_have_not(make: Callable[[], Any], expected: set[str]) -> None:
    assert set(TaskiqJobs(store(), make()).unsupported_options()) == expected


ARQ = """
import asyncio, json, sys, time
from arq.connections import RedisSettings
from retrysafe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.jobs.arq import ArqJobs

async def main(url, queue):
    jobs = ArqJobs(RetrySafe("memory://"), RedisSettings.from_dsn(url))
    async def charge(order): return order
    task = jobs.task(name="charge")(charge)
    await jobs.aenqueue(task, ("o-7",), key="later-" + queue, countdown=3600, queue=queue)
    try:
        await jobs.aenqueue(task, ("o-7",), key="b-" + queue, priority=1)
        refused = ""
    except UsageError as error:
        refused = str(error)
    redis = await jobs._redis.get()
    (found,) = await redis.zrange(queue, 0, -1, withscores=True)
    await redis.aclose()
    print(json.dumps({"id": found[0].decode(), "at": found[1] / 1000, "refused": refused}))

asyncio.run(main(*sys.argv[1:]))
"""


def test_arq(redis_url: str) -> None:
    queue = unique("arq")
    printed = json.loads(run_arq("-c", ARQ, redis_url, queue).splitlines()[-1])
    assert printed["id"] == f"later-{queue}"
    assert about_an_hour_from_now(printed["at"])
    assert "arq cannot do that here" in printed["refused"]
