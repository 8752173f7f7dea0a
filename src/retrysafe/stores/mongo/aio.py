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
from retrysafe.stores.mongo.batches import SEND_UNBATCHED, group_batches, plan_batch
from retrysafe.stores.mongo.client import CODEC, MAX_PARALLEL_OPS, make_client
from retrysafe.stores.mongo.outbox import plan_operation
from retrysafe.stores.mongo.plans import Command, LockNotAvailable, MongoPlans
from retrysafe.stores.mongo.settings import CAPABILITIES, LOCK_TIMEOUT_SECONDS, Collections, MongoLocation, build_names

R = TypeVar("R")


class AsyncMongoStore:
    """From your client, or with `open` from a URL. Closes the client only if it owns it."""

    capabilities = CAPABILITIES
    mixed_batches = True

    def __init__(
        self,
        client: AsyncMongoClient[Any],
        database: str,
        *,
        collection: str = "retrysafe",
        patience: float = LOCK_TIMEOUT_SECONDS,
        owned: bool = False,
    ) -> None:
        self.names = Collections(database, build_names(collection))
        self._client = client
        self._database = client.get_database(database, codec_options=CODEC)
        self._plans = MongoPlans(self.names.names, patience)
        self._owned = owned
        self._parallel = asyncio.Semaphore(MAX_PARALLEL_OPS)
        self._closed = False

    @classmethod
    def open(cls, at: MongoLocation) -> AsyncMongoStore:
        client: AsyncMongoClient[Any] = make_client(AsyncMongoClient, at.url)
        return cls(client, at.database, collection=at.collection, patience=at.patience, owned=True)

    async def execute(self, op: Op[R]) -> R:
        return await self._follow(plan_operation(self._plans, op))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Claims, completions and renewals in a command each; the others side by side, as writes of their own."""
        replies: list[Any] = [SEND_UNBATCHED] * len(ops)
        for lane in group_batches(ops):
            found = await self._follow(plan_batch(self._plans, [ops[place] for place in lane]))
            for place, reply in zip(lane, found, strict=True):
                replies[place] = reply
        left = [place for place, reply in enumerate(replies) if reply is SEND_UNBATCHED]
        for place, reply in zip(left, await self._execute_parallel([ops[place] for place in left]), strict=True):
            replies[place] = reply
        return replies

    async def _execute_parallel(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies = await asyncio.gather(*(self._execute_limited(op) for op in ops), return_exceptions=True)
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

    async def _execute_limited(self, op: Op[R]) -> R:
        async with self._parallel:
            return await self.execute(op)

    async def _follow(self, plan: Plan[Command, R]) -> R:
        try:
            return await afollow(plan, self._send)
        except LockNotAvailable as error:
            raise errors.lock_timeout_error() from error

    async def _send(self, command: Command) -> Mapping[str, Any]:
        if self._closed:  # a client that was never used takes no notice of being closed, and would connect now
            raise StoreUnavailable("this store was closed; open a new one")
        try:
            reply: Mapping[str, Any] = await self._database.command(command.body, codec_options=CODEC)
        except Exception as error:
            found = errors.translate_error(error)
            if found is error:
                raise
            raise found from error
        problem = errors.find_reply_error(reply)
        if problem is not None:
            raise problem
        return reply
