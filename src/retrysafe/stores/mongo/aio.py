"""The async colour of MongoDB, through pymongo's AsyncMongoClient. The twin of sync.py."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pymongo import AsyncMongoClient

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan, afollow
from retrysafe.stores.mongo import errors, schema
from retrysafe.stores.mongo.batches import LEFT, lanes, together
from retrysafe.stores.mongo.client import ABREAST, CODEC, made
from retrysafe.stores.mongo.outbox import plan_of
from retrysafe.stores.mongo.plans import Command, Held, Plans
from retrysafe.stores.mongo.settings import CAPABILITIES, PATIENCE, Home, Location, names

R = TypeVar("R")


class AsyncMongoStore:
    """From your client, or with `open` from a URL. Closes the client only if it owns it."""

    capabilities = CAPABILITIES
    mixes = True

    def __init__(
        self,
        client: AsyncMongoClient[Any],
        database: str,
        *,
        collection: str = "retrysafe",
        patience: float = PATIENCE,
        owned: bool = False,
    ) -> None:
        self.names = Home(database, names(collection))
        self._client = client
        self._database = client.get_database(database, codec_options=CODEC)
        self._plans = Plans(self.names.names, patience)
        self._owned = owned
        self._abreast = asyncio.Semaphore(ABREAST)
        self._closed = False

    @classmethod
    def open(cls, at: Location) -> AsyncMongoStore:
        client: AsyncMongoClient[Any] = made(AsyncMongoClient, at.url)
        return cls(client, at.database, collection=at.collection, patience=at.patience, owned=True)

    async def execute(self, op: Op[R]) -> R:
        return await self._follow(plan_of(self._plans, op))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Claims, completions and renewals in a command each; the others side by side, as writes of their own."""
        replies: list[Any] = [LEFT] * len(ops)
        for lane in lanes(ops):
            found = await self._follow(together(self._plans, [ops[place] for place in lane]))
            for place, reply in zip(lane, found, strict=True):
                replies[place] = reply
        left = [place for place, reply in enumerate(replies) if reply is LEFT]
        for place, reply in zip(left, await self._side_by_side([ops[place] for place in left]), strict=True):
            replies[place] = reply
        return replies

    async def _side_by_side(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies = await asyncio.gather(*(self._in_turn(op) for op in ops), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def migrate(self) -> list[str]:
        return await self._follow(schema.upgrade(self._plans))

    async def aclose(self) -> None:
        self._closed = True
        if self._owned:
            await self._client.close()

    async def _in_turn(self, op: Op[R]) -> R:
        async with self._abreast:
            return await self.execute(op)

    async def _follow(self, plan: Plan[Command, R]) -> R:
        try:
            return await afollow(plan, self._send)
        except Held as error:
            raise errors.held_elsewhere() from error

    async def _send(self, command: Command) -> Mapping[str, Any]:
        if self._closed:  # a client that was never used takes no notice of being closed, and would connect now
            raise StoreUnavailable("this store was closed; open a new one")
        try:
            reply: Mapping[str, Any] = await self._database.command(command.body, codec_options=CODEC)
        except Exception as error:
            found = errors.meaning(error)
            if found is error:
                raise
            raise found from error
        problem = errors.in_reply(reply)
        if problem is not None:
            raise problem
        return reply
