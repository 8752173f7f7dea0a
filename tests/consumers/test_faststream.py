"""FastStream on a real RabbitMQ, with the inbox as its middleware."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from faststream import AckPolicy, Context
from faststream.rabbit import RabbitBroker, RabbitQueue

from retrysafe.consumers import Inbox, Reject
from retrysafe.consumers.faststream import count_deliveries, once
from retrysafe.engine.safe import RetrySafe
from tests.consumers.brokers import Sent, broker_of
from tests.consumers.test_brokers import effects, until
from tests.opening import unique

TX = Context("tx")
pytestmark = [pytest.mark.xdist_group("rabbitmq"), pytest.mark.timeout(600)]


async def test_a_handler_of_faststream_runs_once_in_its_transaction(rabbitmq_url: str, database: Path) -> None:
    rabbit, runs = broker_of("rabbitmq", rabbitmq_url, unique("faststream")), Counter[str]()
    safe = RetrySafe(f"sqlite:///{database}", tx=lambda: aiosqlite.connect(database))
    inbox = Inbox(safe, "faststream", max_attempts=2, pause=lambda failures: 0.0)
    broker = RabbitBroker(rabbitmq_url, middlewares=[once(inbox)], logger=None)
    dead = f"{rabbit.name}.dead"
    own = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = RabbitQueue(rabbit.name, durable=True, arguments=own)

    @broker.subscriber(queue, ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(body: str, tx: Any = TX) -> None:
        runs[body] += 1
        await tx.execute("INSERT INTO effects VALUES (?)", [body])
        if body == "bad":
            raise Reject("never")
        if body == "poison" or (body == "flaky" and runs[body] == 1):
            raise RuntimeError(body)

    async with safe, broker:
        await broker.declare_queue(RabbitQueue(dead, durable=True))
        await broker.start()
        names = ("a", "b", "a", "flaky", "poison", "bad")
        await rabbit.send([*(Sent(name, name.encode()) for name in names)])
        await until(lambda: effects(database).total() == 3 and runs["poison"] >= 2 and runs["bad"] >= 1, "them")
    assert effects(database) == {"a": 1, "b": 1, "flaky": 1}
    assert runs["flaky"] >= 2


def test_what_the_brokers_count() -> None:
    class Raw:
        def __init__(self, **attributes: Any) -> None:
            vars(self).update(attributes)

    assert count_deliveries(Raw(headers={"x-delivery-count": 3})) == 4
    assert count_deliveries(Raw(headers={}, redelivered=True)) == 2
    assert count_deliveries(Raw(metadata=Raw(num_delivered=5))) == 5
    assert count_deliveries(Raw()) == 1


def test_it_is_the_producer_s_id_and_not_faststream_s() -> None:
    """If the producer sent no id, FastStream makes one up for each delivery."""
    from faststream.message import StreamMessage

    from retrysafe.consumers.faststream import read_message

    made_up: StreamMessage[Any] = StreamMessage(object(), b"x", message_id="made-up", headers={"message-id": "real"})
    message = read_message(made_up)
    assert message.id == ""
    with RetrySafe("memory://") as safe:
        inbox = Inbox(safe, "x")
        inbox.handler(lambda message: None)
        handling = inbox.prepare(message)
        assert handling.message.id == "real"  # type: ignore[union-attr]  # it has one, so it is not dead
