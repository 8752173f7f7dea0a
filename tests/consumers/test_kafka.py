"""What only Kafka has: partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from retrysafe.consumers import Inbox, Message, kafka
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from tests.consumers.brokers import running
from tests.consumers.test_brokers import TIMEOUT_SECONDS, until
from tests.opening import unique

pytestmark = [pytest.mark.xdist_group("kafka"), pytest.mark.timeout(600)]


class Topic:
    """A topic of two partitions, and a consumer of both."""

    def __init__(self, name: str, producer: AIOKafkaProducer, consumer: AIOKafkaConsumer) -> None:
        self.name, self.producer, self.consumer = name, producer, consumer
        self.both = [TopicPartition(name, number) for number in (0, 1)]

    async def send(self, partition: int, *names: str) -> None:
        for name in names:
            headers = [("message-id", name.encode())]
            await self.producer.send_and_wait(self.name, name.encode(), headers=headers, partition=partition)


@asynccontextmanager
async def topic_at(address: str) -> AsyncIterator[Topic]:
    name = unique("partitions")
    producer = AIOKafkaProducer(bootstrap_servers=address)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, group_id=name, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    async with producer, consumer:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            for each in (name, f"{name}.dead"):
                while len(await producer.partitions_for(each)) < 2:  # the request for it makes the broker create it
                    await asyncio.sleep(0.02)
        topic = Topic(name, producer, consumer)
        consumer.assign(topic.both)
        yield topic


def inbox_of(safe: RetrySafe, pause: float) -> tuple[Inbox, list[str], set[str]]:
    """An inbox whose handler fails for the names in a set, and the list of what it has handled."""
    inbox, handled, failing = Inbox(safe, "billing", max_attempts=1000, pause=lambda failures: pause), [], {"bad"}

    @inbox.handler
    async def handle(message: Message) -> None:
        handled.append(message.id)
        if message.id in failing:
            raise RuntimeError("not yet")

    return inbox, handled, failing


async def test_a_retried_message_holds_its_own_partition_only(kafka_address: str) -> None:
    async with topic_at(kafka_address) as topic:
        with RetrySafe("memory://") as safe:
            inbox, handled, _ = inbox_of(safe, pause=3600.0)
            await topic.send(0, "bad", "after-bad")
            async with running(kafka.consume(topic.consumer, inbox, producer=topic.producer)) as task:
                await until(lambda: "bad" in handled or task.done(), "the failing one")
                for name in ("a", "b", "c"):
                    await topic.send(1, name)
                    await until(lambda name=name: name in handled or task.done(), name)  # type: ignore[misc]
                assert topic.consumer.paused() == {topic.both[0]}
                assert not task.done()
    assert handled == ["bad", "a", "b", "c"], "and what comes after it in its own partition waits"


async def test_a_held_partition_goes_on_in_its_order(kafka_address: str) -> None:
    async with topic_at(kafka_address) as topic:
        with RetrySafe("memory://") as safe:
            inbox, handled, failing = inbox_of(safe, pause=0.05)
            await topic.send(0, "bad", "second", "third")
            async with running(kafka.consume(topic.consumer, inbox, producer=topic.producer)) as task:
                await until(lambda: handled.count("bad") >= 3 or task.done(), "retries")
                failing.clear()
                await until(lambda: "third" in handled or task.done(), "the rest")
                await topic.send(0, "fourth")
                await until(lambda: "fourth" in handled or task.done(), "what is fetched after the pause")
                assert topic.consumer.paused() == set()
                if task.done():
                    task.result()
            assert [name for name in handled if name != "bad"] == ["second", "third", "fourth"]
            assert await topic.consumer.committed(topic.both[0]) == 4


async def test_a_record_is_left_to_the_next_owner_of_its_partition(kafka_address: str) -> None:
    async with topic_at(kafka_address) as topic:
        with RetrySafe("memory://") as safe:
            inbox, handled, _ = inbox_of(safe, pause=0.01)
            await topic.send(0, "bad")
            async with running(kafka.consume(topic.consumer, inbox, producer=topic.producer)) as task:
                await until(lambda: "bad" in handled or task.done(), "the failing one")
                topic.consumer.assign(topic.both[1:])  # as after a rebalance
                await topic.send(1, "mine")
                await until(lambda: "mine" in handled or task.done(), "what is ours now")
                tried = handled.count("bad")
                await topic.send(1, "mine-too")
                await until(lambda: "mine-too" in handled or task.done(), "what is ours now")
                assert handled.count("bad") == tried
                assert not task.done()


async def test_a_wrong_program_ends_the_consumer(kafka_address: str) -> None:
    async with topic_at(kafka_address) as topic:
        with RetrySafe("memory://") as safe:
            nobody: Any = Inbox(safe, "nobody")
            await topic.send(0, "a")
            with pytest.raises(UsageError, match="no handler"):
                await asyncio.wait_for(kafka.consume(topic.consumer, nobody, producer=topic.producer), TIMEOUT_SECONDS)
