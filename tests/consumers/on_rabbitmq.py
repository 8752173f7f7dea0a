"""A queue of RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aio_pika

from retrysafe.consumers import Inbox, rabbitmq
from tests.consumers.brokers import AT_ONCE, Broker, Letter, Sent, running


class OwnBroker(Broker):
    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[Any]:
        connection = await aio_pika.connect(self.url)
        async with connection:
            yield await connection.channel()

    async def make(self) -> None:
        async with self._channel() as channel:
            await channel.declare_queue(self.name, durable=True)

    async def send(self, messages: Sequence[Sent]) -> None:
        async with self._channel() as channel:
            sending = (
                channel.default_exchange.publish(self._message(each), routing_key=self.name) for each in messages
            )
            await asyncio.gather(*sending)

    @staticmethod
    def _message(sent: Sent) -> Any:
        """A message without an id is sent like a copy of ours: aio-pika publishes no message without an id."""
        headers = {} if sent.id else {rabbitmq.NO_ID_HEADER: True}
        return aio_pika.Message(sent.body, message_id=sent.id or None, headers=headers, delivery_mode=2)

    @asynccontextmanager
    async def consume(self, inbox: Inbox) -> AsyncIterator[asyncio.Task[None]]:
        async with (
            self._channel() as channel,
            running(rabbitmq.consume(channel, self.name, inbox, at_once=AT_ONCE)) as task,
        ):
            yield task

    async def left(self) -> int:
        async with self._channel() as channel:
            queue = await channel.declare_queue(self.name, passive=True)
            return int(queue.declaration_result.message_count)

    async def dead(self) -> list[Letter]:
        letters = []
        async with self._channel() as channel:
            queue = await channel.declare_queue(f"{self.name}.dead", durable=True)
            while (found := await queue.get(fail=False, no_ack=True)) is not None:
                letters.append(Letter(found.body, str(found.headers[rabbitmq.REASON_HEADER])))
        return letters
