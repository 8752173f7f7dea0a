"""Kafka, with aiokafka.

    consumer = AIOKafkaConsumer("orders", group_id="billing", enable_auto_commit=False, …)
    await kafka.consume(consumer, inbox, producer=producer)

The offset is committed after the inbox has committed. Kafka knows no refusal: a message that comes later holds up its
partition, as the order of a partition demands, and the others go on. Dead letters go to the topic `<topic>.dead`
through `producer`. The id is a header (`message-id`, or that of a CloudEvent); never the offset, which a producer that
sends again gets anew.

Tested against librdkafka's mock broker, which speaks the real protocol; a real Kafka was not to be had.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition  # type: ignore[import-untyped]  # it has no types
from aiokafka.errors import CommitFailedError, IllegalStateError  # type: ignore[import-untyped]  # it has no types

from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.looping import forever, together
from retrysafe.consumers.message import Message, headers_of
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.errors import UsageError

REASON = "retrysafe-reason"
REASON_LENGTH = 1000


async def consume(consumer: AIOKafkaConsumer, inbox: Inbox, *, producer: AIOKafkaProducer, at_once: int = 100) -> None:
    """Feed the inbox from the consumer's topics until cancelled. Start and stop both yourself."""
    await Consumer(consumer, inbox, producer=producer, at_once=at_once).run()


class Consumer:
    """One member of a consumer group. `at_once` is how many records are fetched together."""

    def __init__(
        self, consumer: AIOKafkaConsumer, inbox: Inbox, *, producer: AIOKafkaProducer, at_once: int = 100
    ) -> None:
        if getattr(consumer, "_enable_auto_commit", False):
            raise UsageError(
                "this consumer commits offsets by itself, before its messages are handled; "
                "make it with enable_auto_commit=False"
            )
        if getattr(consumer, "_group_id", "") is None:
            raise UsageError("this consumer has no group, so nobody remembers how far it came; give it a group_id")
        self.inbox = inbox
        self._consumer = consumer
        self._producer = producer
        self._at_once = at_once

    async def run(self) -> None:
        await forever(self.run_once)

    async def run_once(self, wait: float = 1.0) -> int:
        """Fetch what is there, or wait a moment for it; how many messages it were."""
        found = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=self._at_once)
        await together([self._partition(partition, records) for partition, records in found.items()])
        return sum(map(len, found.values()))

    async def _partition(self, partition: TopicPartition, records: list[ConsumerRecord]) -> None:
        """In order, one after the other."""
        for record in records:
            await self.handle(record)
            try:
                await self._consumer.commit({partition: record.offset + 1})
            except (CommitFailedError, IllegalStateError):
                return  # the partition is somebody else's now, who finds in the inbox what was done

    async def handle(self, record: ConsumerRecord) -> Verdict:
        """One record, to its end: done, or in the dead letters."""
        message = message_of(record)
        while True:
            verdict = await self.inbox.aprocess(message)
            if isinstance(verdict, Done):
                return verdict
            if isinstance(verdict, Dead):
                await self._bury(record, verdict)
                return verdict
            await asyncio.sleep(verdict.seconds)
            message = replace(
                message, deliveries=message.deliveries + 1, failures=message.failures + int(verdict.failed)
            )

    async def _bury(self, record: ConsumerRecord, verdict: Dead) -> None:
        headers = [*(record.headers or ()), (REASON, verdict.why[:REASON_LENGTH].encode())]
        await self._producer.send_and_wait(f"{record.topic}.dead", value=record.value, key=record.key, headers=headers)


def message_of(record: ConsumerRecord) -> Message:
    return Message(
        body=as_bytes(record.value), source=record.topic, headers=headers_of(record.headers or ()), raw=record
    )


def as_bytes(value: Any) -> bytes:
    """A tombstone has no value."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    raise UsageError(
        f"this consumer deserializes values (to {type(value).__qualname__}), and a message is bytes; leave "
        "value_deserializer out and call message.json() in the handler"
    )
