"""A stream of Redis or Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from retrysafe.consumers import Inbox, redis
from tests.consumers.brokers import AT_ONCE, REDELIVERY_SECONDS, Broker, Letter, Sent, running


class OwnBroker(Broker):
    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        async with Redis.from_url(self.url) as client:
            yield client

    async def make(self) -> None:
        async with self._client() as client:
            await client.xgroup_create(self.name, "tests", id="0", mkstream=True)

    async def send(self, messages: Sequence[Sent]) -> None:
        async with self._client() as client, client.pipeline(transaction=False) as pipe:
            for each in messages:
                pipe.xadd(self.name, {"payload": each.body, **({"id": each.id} if each.id else {})})
            await pipe.execute()

    @asynccontextmanager
    async def consume(self, inbox: Inbox) -> AsyncIterator[asyncio.Task[None]]:
        async with (
            self._client() as client,
            running(redis.consume(client, self.name, "tests", inbox, idle=REDELIVERY_SECONDS, at_once=AT_ONCE)) as task,
        ):
            yield task

    async def left(self) -> int:
        async with self._client() as client:
            (group,) = await client.xinfo_groups(self.name)
            return int(group["pending"]) + int(group["lag"])

    async def dead(self) -> list[Letter]:
        async with self._client() as client:
            found = await client.xrange(f"{self.name}:dead")
            await client.delete(f"{self.name}:dead")
        return [Letter(fields[b"payload"], fields[redis.REASON_FIELD.encode()].decode()) for _, fields in found]
