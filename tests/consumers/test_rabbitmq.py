"""What only RabbitMQ has."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aio_pika
import pytest

from retrysafe.consumers import Inbox, Message, rabbitmq
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from tests.consumers.brokers import Sent, broker_of
from tests.consumers.test_brokers import TIMEOUT_SECONDS, consume_all, effects, until
from tests.opening import unique

pytestmark = [pytest.mark.xdist_group("rabbitmq"), pytest.mark.timeout(600)]


@pytest.fixture
async def channel(rabbitmq_url: str) -> AsyncIterator[Any]:
    async with await aio_pika.connect(rabbitmq_url) as connection:
        yield await connection.channel()


async def test_a_message_without_an_id_has_none_when_it_is_put_back(rabbitmq_url: str, database: Path) -> None:
    """aio-pika makes up an id for the copy. With that id it would be another message, and could be handled twice."""
    broker, runs = broker_of("rabbitmq", rabbitmq_url, unique("nameless")), Counter[str]()
    with RetrySafe(f"sqlite:///{database}", tx=str(database)) as safe:
        inbox = Inbox(safe, "nameless", missing="payload", pause=lambda failures: 0.0)

        @inbox.handler
        def handle(message: Message, tx: sqlite3.Connection) -> None:
            tx.execute("INSERT INTO effects VALUES (?)", [message.id])
            runs[message.id] += 1
            if runs[message.id] < 3:
                raise RuntimeError("not yet")

        await broker.make()
        await broker.send([Sent("", b"x"), Sent("", b"x")])
        await consume_all(broker, inbox, lambda: effects(database).total() >= 1)
    assert list(effects(database).values()) == [1]
    assert len(runs) == 1


async def test_a_channel_that_is_closed_ends_the_consumer(channel: Any, database: Path) -> None:
    with RetrySafe(f"sqlite:///{database}") as safe:
        inbox, handled = Inbox(safe, "closed"), []
        inbox.handler(lambda message: handled.append(message.id))
        name = unique("closed")
        await channel.declare_queue(name, durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"x", message_id="a"), routing_key=name)
        task = asyncio.create_task(rabbitmq.consume(channel, name, inbox))
        await until(lambda: bool(handled), "it consumes")
        await channel.close()
        with pytest.raises(ConnectionError, match="consume it again on a new one"):
            await asyncio.wait_for(task, TIMEOUT_SECONDS)


async def test_dead_letters_by_the_queue_s_own_exchange(channel: Any, database: Path) -> None:
    name, dead = unique("exchange"), unique("dead")
    own = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    await channel.declare_queue(name, durable=True, arguments=own)
    grave = await channel.declare_queue(dead, durable=True)
    with RetrySafe(f"sqlite:///{database}") as safe:
        inbox = Inbox(safe, "exchange", id="x-id")
        inbox.handler(lambda message: None)
        await channel.default_exchange.publish(aio_pika.Message(b"no id"), routing_key=name)
        task = asyncio.create_task(rabbitmq.consume(channel, name, inbox, dead="exchange"))
        found: list[Any] = []

        async def look() -> None:
            while not found:
                letter = await grave.get(fail=False, no_ack=True)
                found.extend([letter] if letter is not None else [])

        await asyncio.wait_for(look(), TIMEOUT_SECONDS)
        task.cancel()
        await asyncio.wait({task})
    assert found[0].body == b"no id"
    await until(task.done, "it has ended")


async def test_a_channel_that_confirms_nothing_is_refused(rabbitmq_url: str) -> None:
    with RetrySafe("memory://") as safe:
        async with await aio_pika.connect(rabbitmq_url) as connection:
            quiet = await connection.channel(publisher_confirms=False)
            with pytest.raises(UsageError, match="publisher_confirms=True"):
                rabbitmq.Consumer(quiet, "x", Inbox(safe, "x"))
            loud = await connection.channel()
            with pytest.raises(UsageError, match="choose 'queue' or 'exchange'"):
                rabbitmq.Consumer(loud, "x", Inbox(safe, "x"), dead="nowhere")  # type: ignore[arg-type]  # wrong


@pytest.mark.parametrize(
    ("headers", "redelivered", "deliveries", "failures"),
    [
        ({}, False, 1, 0),
        ({}, True, 2, 0),
        ({"x-delivery-count": 4}, True, 5, 0),
        ({rabbitmq.FAILURES_HEADER: 3}, False, 4, 3),
        ({rabbitmq.FAILURES_HEADER: "3", "x-delivery-count": True}, False, 1, 0),
        ({rabbitmq.FAILURES_HEADER: -1}, False, 1, 0),
    ],
)
def test_what_is_counted(headers: dict[str, Any], redelivered: bool, deliveries: int, failures: int) -> None:
    incoming: Any = SimpleNamespace(body=b"x", message_id=None, headers=headers, redelivered=redelivered)
    message = rabbitmq.read_message(incoming, "queue")
    assert (message.id, message.deliveries, message.failures) == ("", deliveries, failures)


PROPERTIES = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "delivery_mode": aio_pika.DeliveryMode.PERSISTENT,
    "priority": 3,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": 3600.0,
    "message_id": "m-1",
    "timestamp": datetime(2026, 1, 2, tzinfo=UTC),
    "type": "order.created",
    "app_id": "shop",
}


async def test_a_message_that_is_put_back_keeps_what_its_sender_said(channel: Any, database: Path) -> None:
    """All properties of AMQP are kept; `user_id` as a header, because the broker accepts it only from that user."""
    name, seen = unique("properties"), []
    await channel.declare_queue(name, durable=True)
    with RetrySafe(f"sqlite:///{database}") as safe:
        inbox = Inbox(safe, "properties", pause=lambda failures: 0.0, max_attempts=3)

        @inbox.handler
        async def handle(message: Message) -> None:
            seen.append(message.raw)
            raise RuntimeError("not yet")

        sent = aio_pika.Message(b"{}", headers={"tenant": "t-1"}, user_id="guest", **PROPERTIES)  # type: ignore[arg-type]
        await channel.default_exchange.publish(sent, routing_key=name)
        task = asyncio.create_task(rabbitmq.consume(channel, name, inbox))
        await until(lambda: len(seen) == 3 or task.done(), "three attempts")
        grave = await channel.declare_queue(f"{name}.dead", durable=True)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (letter := await grave.get(fail=False, no_ack=True)) is None:
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait({task})
    for attempt, copy in enumerate(seen):
        assert {field: getattr(copy, field) for field in PROPERTIES} == PROPERTIES, f"attempt {attempt + 1}"
        assert copy.headers["tenant"] == "t-1"
        assert "guest" in (copy.user_id, copy.headers.get(rabbitmq.USER_ID_HEADER))
    assert letter.expiration is None, "a dead letter waits for a person"
    kept = {**PROPERTIES, "expiration": None}
    assert {field: getattr(letter, field) for field in kept} == kept
