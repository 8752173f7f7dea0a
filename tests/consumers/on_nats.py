"""A stream of JetStream, and one for its dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.js.api import ConsumerConfig

from retrysafe.consumers import Inbox
from retrysafe.consumers import nats as on_nats
from tests.consumers.brokers import AT_ONCE, REDELIVERY_SECONDS, Broker, Letter, Sent, running


class OwnBroker(Broker):
    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[Any]:
        async with await nats.connect(self.url) as connection:
            yield connection.jetstream(timeout=60)  # a slow machine must not fail the test

    async def make(self) -> None:
        async with self._stream() as js:
            # JetStream drops duplicates within this window. It is short, so that the inbox has to find them.
            await js.add_stream(name=self.name, subjects=[f"{self.name}.new"], duplicate_window=0.1)
            await js.add_stream(name=f"{self.name}dead", subjects=[f"{self.name}.dead"])
            await self._subscribe(js)

    async def _subscribe(self, js: Any) -> Any:
        settings = ConsumerConfig(ack_wait=2 * REDELIVERY_SECONDS, ack_policy="explicit")
        return await js.pull_subscribe(f"{self.name}.new", durable="tests", stream=self.name, config=settings)

    async def send(self, messages: Sequence[Sent]) -> None:
        async with self._stream() as js:
            for number, each in enumerate(messages):
                headers = {"message-id": each.id} if each.id else {}
                await js.publish(f"{self.name}.new", each.body, headers={**headers, "number": str(number)})

    @asynccontextmanager
    async def consume(self, inbox: Inbox) -> AsyncIterator[asyncio.Task[None]]:
        async with self._stream() as js:
            subscription = await self._subscribe(js)
            work = on_nats.consume(js, subscription, inbox, dead=f"{self.name}.dead", at_once=AT_ONCE)
            async with running(work) as task:
                yield task

    async def left(self) -> int:
        async with self._stream() as js:
            info = await js.consumer_info(self.name, "tests")
            return int((info.num_pending or 0) + (info.num_ack_pending or 0))

    async def dead(self) -> list[Letter]:
        async with self._stream() as js:
            count = (await js.stream_info(f"{self.name}dead")).state.messages
            found = [await js.get_msg(f"{self.name}dead", seq=number) for number in range(1, count + 1)]
            await js.purge_stream(f"{self.name}dead")
        return [Letter(each.data or b"", (each.headers or {})[on_nats.REASON_HEADER]) for each in found]
