"""Kafka, with aiokafka.

    consumer = AIOKafkaConsumer("orders", group_id="billing", enable_auto_commit=False, …)
    await kafka.consume(consumer, inbox, producer=producer)

The offset is committed after the inbox has committed. Each partition has its own loop. Kafka has no way to refuse a
message, so a message for later holds up its partition, which keeps the partition's order. That partition is paused, the
other partitions go on, and the consumer stays an active member of its group. Dead letters go to the topic
`<topic>.dead` through `producer`. The id is a header (`message-id`, or that of a CloudEvent), never the offset: a
producer that sends again gets a new offset.

Tested against librdkafka's mock broker, which speaks the real protocol; a real Kafka was not available.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition  # type: ignore[import-untyped]  # it has no types
from aiokafka.errors import CommitFailedError, IllegalStateError  # type: ignore[import-untyped]  # it has no types

from retrysafe.consumers.common import gather_all, run_forever, shorten_reason, wait_for_any
from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.errors import UsageError

REASON_HEADER = "retrysafe-reason"

POLL_SECONDS = 1.0
"""How often a partition's loop checks whether the partition is still assigned to us, and the consumer whether it has
new partitions."""

WaitPaused = Callable[[TopicPartition, float], Awaitable[None]]


class PartitionLost(Exception):
    """The partition is no longer assigned to this consumer, or the consumer ends."""


async def consume(consumer: AIOKafkaConsumer, inbox: Inbox, *, producer: AIOKafkaProducer, at_once: int = 100) -> None:
    """Feed the inbox from the consumer's topics until cancelled. You start and stop the consumer and the producer."""
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
            raise UsageError("this consumer has no group, so its offsets would not be stored; give it a group_id")
        self.inbox = inbox
        self._consumer = consumer
        self._producer = producer
        self._at_once = at_once
        self._stopping = False

    async def run(self) -> None:
        """Run until cancelled. If the program is wrong in one partition, the other partitions finish their current
        record, and then the error is raised."""
        loops: dict[TopicPartition, asyncio.Task[None]] = {}
        self._stopping = False
        try:
            while True:
                for partition in self._consumer.assignment() - loops.keys():
                    loops[partition] = asyncio.create_task(self._consume_partition(partition))
                await wait_for_any(loops.values(), POLL_SECONDS)
                for partition in [each for each, loop in loops.items() if loop.done()]:
                    loops.pop(partition).result()
        except asyncio.CancelledError:
            for loop in loops.values():
                loop.cancel()
            raise
        finally:
            self._stopping = True
            await asyncio.gather(*loops.values(), return_exceptions=True)

    async def run_once(self, wait: float = 1.0) -> int:
        """Fetch records, waiting at most `wait` seconds for them, and handle each to its end. Returns the number of
        messages."""
        fetched = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=self._at_once)
        await gather_all([self._handle_in_order(partition, records) for partition, records in fetched.items()])
        return sum(map(len, fetched.values()))

    async def _consume_partition(self, partition: TopicPartition) -> None:
        """Consume one partition for as long as it is assigned to this consumer."""
        with suppress(PartitionLost):
            await run_forever(partial(self._consume_batch, partition))

    async def _consume_batch(self, partition: TopicPartition) -> None:
        self._check_assigned(partition)
        timeout_ms = int(POLL_SECONDS * 1000)
        fetched = await self._consumer.getmany(partition, timeout_ms=timeout_ms, max_records=self._at_once)
        await self._handle_in_order(partition, fetched.get(partition, []), self._wait_paused)

    async def _handle_in_order(
        self, partition: TopicPartition, records: list[ConsumerRecord], wait_paused: WaitPaused | None = None
    ) -> None:
        """Handle the records one after the other, and commit the offset after each."""
        for record in records:
            await self.handle(record, wait_paused)
            try:
                await self._consumer.commit({partition: record.offset + 1})
            except (CommitFailedError, IllegalStateError):
                return  # another consumer has the partition now, and finds in the inbox what was handled
            if self._stopping:
                return

    async def handle(self, record: ConsumerRecord, wait_paused: WaitPaused | None = None) -> Verdict:
        """Handle one record to its end: done, or a dead letter. `wait_paused` is how to wait before the next try."""
        message, partition = read_message(record), TopicPartition(record.topic, record.partition)
        while True:
            verdict = await self.inbox.aprocess(message)
            if isinstance(verdict, Done):
                return verdict
            if isinstance(verdict, Dead):
                await self._dead_letter(record, verdict)
                return verdict
            if wait_paused is None:
                await asyncio.sleep(verdict.seconds)
            else:
                await wait_paused(partition, verdict.seconds)
            message = replace(
                message, deliveries=message.deliveries + 1, failures=message.failures + int(verdict.failed)
            )

    async def _wait_paused(self, partition: TopicPartition, seconds: float) -> None:
        """Wait without holding up other partitions. This partition is paused, so fetching from it takes the given time
        and returns nothing. The fetching keeps this consumer an active member of its group."""
        until = asyncio.get_running_loop().time() + seconds
        self._check_assigned(partition)
        self._consumer.pause(partition)
        try:
            while (left := until - asyncio.get_running_loop().time()) > 0:
                await self._consumer.getmany(partition, timeout_ms=max(1, int(min(left, POLL_SECONDS) * 1000)))
                self._check_assigned(partition)
        finally:
            if partition in self._consumer.assignment():
                self._consumer.resume(partition)

    def _check_assigned(self, partition: TopicPartition) -> None:
        """Raise if the partition went to another consumer, which then handles the record: its offset was not
        committed."""
        if self._stopping or partition not in self._consumer.assignment():
            raise PartitionLost

    async def _dead_letter(self, record: ConsumerRecord, verdict: Dead) -> None:
        headers = [*(record.headers or ()), (REASON_HEADER, shorten_reason(verdict).encode())]
        await self._producer.send_and_wait(f"{record.topic}.dead", value=record.value, key=record.key, headers=headers)


def read_message(record: ConsumerRecord) -> Message:
    return Message(
        body=read_body(record.value), source=record.topic, headers=normalize_headers(record.headers or ()), raw=record
    )


def read_body(value: Any) -> bytes:
    """The record's value; empty for a tombstone, which has none."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    raise UsageError(
        f"this consumer deserializes values (to {type(value).__qualname__}), and a message is bytes; leave "
        "value_deserializer out and call message.json() in the handler"
    )
