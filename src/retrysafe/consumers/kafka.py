"""Kafka, with aiokafka.

    consumer = AIOKafkaConsumer("orders", group_id="billing", enable_auto_commit=False, …)
    await kafka.consume(consumer, inbox, producer=producer)

The offset is committed after the inbox has committed. Each partition has a loop of its own. Kafka knows no refusal: a
message that comes later holds up its partition, as the order of a partition demands. That partition is paused, the
others go on, and the group is told that we are alive. Dead letters go to the topic `<topic>.dead` through `producer`.
The id is a header (`message-id`, or that of a CloudEvent); never the offset, which a producer that sends again gets
anew.

Tested against librdkafka's mock broker, which speaks the real protocol; a real Kafka was not to be had.
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

from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.loops import gather_all, run_forever, wait_for_any
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.errors import UsageError

REASON_HEADER = "retrysafe-reason"
MAX_REASON_CHARS = 1000

POLL_SECONDS = 1.0
"""Seconds after which a loop looks whether its partition is still ours, and the consumer whether it has new ones."""

WaitPaused = Callable[[TopicPartition, float], Awaitable[None]]


class PartitionLost(Exception):
    """The partition is no longer ours, or the consumer ends."""


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
        self._stopping = False

    async def run(self) -> None:
        """Until cancelled. If the program is wrong in one partition, the others finish their record, and it is told."""
        lanes: dict[TopicPartition, asyncio.Task[None]] = {}
        self._stopping = False
        try:
            while True:
                for partition in self._consumer.assignment() - lanes.keys():
                    lanes[partition] = asyncio.create_task(self._consume_partition(partition))
                await wait_for_any(lanes.values(), POLL_SECONDS)
                for partition in [each for each, lane in lanes.items() if lane.done()]:
                    lanes.pop(partition).result()
        except asyncio.CancelledError:
            for lane in lanes.values():
                lane.cancel()
            raise
        finally:
            self._stopping = True
            await asyncio.gather(*lanes.values(), return_exceptions=True)

    async def run_once(self, wait: float = 1.0) -> int:
        """Fetch what is there, or wait a moment for it, and handle it to its end; how many messages it were."""
        found = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=self._at_once)
        await gather_all([self._handle_in_order(partition, records) for partition, records in found.items()])
        return sum(map(len, found.values()))

    async def _consume_partition(self, partition: TopicPartition) -> None:
        """One partition, for as long as it is ours."""
        with suppress(PartitionLost):
            await run_forever(partial(self._consume_batch, partition))

    async def _consume_batch(self, partition: TopicPartition) -> None:
        self._check_assigned(partition)
        found = await self._consumer.getmany(partition, timeout_ms=int(POLL_SECONDS * 1000), max_records=self._at_once)
        await self._handle_in_order(partition, found.get(partition, []), self._wait_paused)

    async def _handle_in_order(
        self, partition: TopicPartition, records: list[ConsumerRecord], rest: WaitPaused | None = None
    ) -> None:
        """One after the other."""
        for record in records:
            await self.handle(record, rest)
            try:
                await self._consumer.commit({partition: record.offset + 1})
            except (CommitFailedError, IllegalStateError):
                return  # the partition is somebody else's now, who finds in the inbox what was done
            if self._stopping:
                return

    async def handle(self, record: ConsumerRecord, rest: WaitPaused | None = None) -> Verdict:
        """One record, to its end: done, or in the dead letters. `rest` is how to wait before it is tried again."""
        message, partition = read_message(record), TopicPartition(record.topic, record.partition)
        while True:
            verdict = await self.inbox.aprocess(message)
            if isinstance(verdict, Done):
                return verdict
            if isinstance(verdict, Dead):
                await self._dead_letter(record, verdict)
                return verdict
            if rest is None:
                await asyncio.sleep(verdict.seconds)
            else:
                await rest(partition, verdict.seconds)
            message = replace(
                message, deliveries=message.deliveries + 1, failures=message.failures + int(verdict.failed)
            )

    async def _wait_paused(self, partition: TopicPartition, seconds: float) -> None:
        """Wait without holding anybody else. The partition is paused, so asking for its records takes the time we
        want and brings none; and whoever asks is a living member of its group."""
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
        """A record of a partition that went to somebody else is left to them: its offset was not committed."""
        if self._stopping or partition not in self._consumer.assignment():
            raise PartitionLost

    async def _dead_letter(self, record: ConsumerRecord, verdict: Dead) -> None:
        headers = [*(record.headers or ()), (REASON_HEADER, verdict.why[:MAX_REASON_CHARS].encode())]
        await self._producer.send_and_wait(f"{record.topic}.dead", value=record.value, key=record.key, headers=headers)


def read_message(record: ConsumerRecord) -> Message:
    return Message(
        body=read_body(record.value), source=record.topic, headers=normalize_headers(record.headers or ()), raw=record
    )


def read_body(value: Any) -> bytes:
    """A tombstone has no value."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    raise UsageError(
        f"this consumer deserializes values (to {type(value).__qualname__}), and a message is bytes; leave "
        "value_deserializer out and call message.json() in the handler"
    )
