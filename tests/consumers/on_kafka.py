"""A topic of Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from retrysafe.consumers import Inbox, kafka
from tests.consumers.brokers import Broker, Letter, Sent, running


class OwnBroker(Broker):
    """librdkafka's mock broker, in the test's process. Partitions are assigned by hand: a group notices a killed member
    only after a time-out, and that is not what is tested."""

    async def make(self) -> None:
        async with self._producer() as producer:
            for topic in (self.name, f"{self.name}.dead"):
                while not await producer.partitions_for(topic):  # the request for it makes the broker create it
                    await asyncio.sleep(0.02)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(bootstrap_servers=self.url)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    @asynccontextmanager
    async def _consumer(self, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.url, group_id="tests", enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, 0)])
            yield consumer
        finally:
            await consumer.stop()

    async def send(self, messages: Sequence[Sent]) -> None:
        async with self._producer() as producer:
            for each in messages:
                headers = [("message-id", each.id.encode())] if each.id else []
                await producer.send(self.name, each.body, headers=headers, partition=0)
            await producer.flush()

    @asynccontextmanager
    async def consume(self, inbox: Inbox) -> AsyncIterator[asyncio.Task[None]]:
        async with (
            self._producer() as producer,
            self._consumer(self.name) as consumer,
            running(kafka.consume(consumer, inbox, producer=producer)) as task,
        ):
            yield task

    async def left(self) -> int:
        at = TopicPartition(self.name, 0)
        async with self._consumer(self.name) as consumer:
            end = (await consumer.end_offsets([at]))[at]
            return int(end - (await consumer.committed(at) or 0))

    async def _partitions(self, topic: str) -> list[int]:
        async with self._producer() as producer:
            return sorted(await producer.partitions_for(topic))

    async def dead(self) -> list[Letter]:
        topic = f"{self.name}.dead"
        letters: list[Letter] = []
        async with self._consumer(topic) as consumer:
            every = [TopicPartition(topic, number) for number in await self._partitions(topic)]
            ends = await consumer.end_offsets(every)
            consumer.assign(every)
            while len(letters) < sum(ends.values()):
                found = await consumer.getmany(timeout_ms=1000)
                letters += [
                    Letter(each.value or b"", dict(each.headers)[kafka.REASON_HEADER].decode())
                    for records in found.values()
                    for each in records
                ]
        return letters
