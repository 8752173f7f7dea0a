"""A consumer that could lose a message is refused before it takes one."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from nats import connect
from redis.asyncio import Redis

from retrysafe.consumers import Inbox, kafka, nats, redis
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from tests.opening import unique


def inbox() -> Inbox:
    return Inbox(RetrySafe("memory://"), "x")


async def test_kafka_that_commits_by_itself_or_for_nobody() -> None:
    for wrong, message in (
        ({"group_id": "g"}, "enable_auto_commit=False"),
        ({"enable_auto_commit": False}, "group_id"),
    ):
        consumer = AIOKafkaConsumer("t", **wrong)
        with pytest.raises(UsageError, match=message):
            kafka.Consumer(consumer, inbox(), producer=None)
        await consumer.stop()


def test_kafka_that_deserializes() -> None:
    assert kafka.read_body(None) == b""
    with pytest.raises(UsageError, match="value_deserializer"):
        kafka.read_body({"a": 1})


def test_a_record_of_kafka_is_known_by_its_headers() -> None:
    given: Any = {"headers": [("Message-Id", b"m-1")], "value": b"x", "topic": "t", "key": None}
    fields = dict.fromkeys(ConsumerRecord.__dataclass_fields__)
    message = kafka.read_message(ConsumerRecord(**{**fields, **given}))
    assert (message.source, message.body, message.headers) == ("t", b"x", {"message-id": "m-1"})


def test_redis_that_decodes() -> None:
    with pytest.raises(UsageError, match="decode_responses=False"):
        redis.Consumer(Redis(decode_responses=True), "s", "g", inbox())


def test_the_fields_of_an_entry() -> None:
    message = redis.read_message((b"1-0", {b"id": b"m-1", b"payload": b"x", b"n": b"7"}), "s", "payload", 3)
    assert (message.id, message.body, message.deliveries, message.failures) == ("m-1", b"x", 3, 2)
    other = redis.read_message((b"2-0", {b"n": b"7", b"payload": b"x", b"id": b"m-1"}), "s", "payload", 1)
    assert message.content == other.content, "the order of fields says nothing"


@pytest.mark.xdist_group("nats")
async def test_nats_without_a_place_for_dead_letters(nats_url: str) -> None:
    name = unique("orphan")
    async with await connect(nats_url) as connection:
        js = connection.jetstream(timeout=60)
        await js.add_stream(name=name, subjects=[name])
        subscription = await js.pull_subscribe(name, durable="x", stream=name)
        with pytest.raises(UsageError, match="no stream keeps this subject"):
            await nats.consume(js, subscription, inbox(), dead=f"{name}.dead")
