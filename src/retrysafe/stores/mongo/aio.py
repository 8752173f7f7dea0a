# sync.py is generated from this file: run `make twins` after a change.
"""The async MongoDB store, through pymongo's AsyncMongoClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pymongo import AsyncMongoClient

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import LockNotAvailable, Plan, afollow
from retrysafe.stores.mongo import errors, schema
from retrysafe.stores.mongo.batches import SEND_UNBATCHED, group_batches, pair_replies, plan_batch
from retrysafe.stores.mongo.client import CODEC, AsyncParallelRunner, make_client
from retrysafe.stores.mongo.outbox import plan_operation
from retrysafe.stores.mongo.plans import MongoCommand, MongoPlans
from retrysafe.stores.mongo.settings import CAPABILITIES, LOCK_TIMEOUT_SECONDS, Collections, MongoLocation, build_names

R = TypeVar("R")


class AsyncMongoStore:
    """Made from your client, or with `open` from a URL. `aclose` closes the client only if the store made it."""

    capabilities = CAPABILITIES

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
        self._parallel = AsyncParallelRunner()
        self._closed = False  # async only

    @classmethod
    def open(cls, at: MongoLocation) -> AsyncMongoStore:
        client: AsyncMongoClient[Any] = make_client(AsyncMongoClient, at.url)
        return cls(client, at.database, collection=at.collection, patience=at.patience, owned=True)

    async def execute(self, op: Op[R]) -> R:
        return await self._follow(plan_operation(self._plans, op))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Send one command for all claims, one for all completions, one for all renewals. Every other operation is a
        command of its own. All of them run at the same time."""
        replies: list[Any] = [SEND_UNBATCHED] * len(ops)
        groups = group_batches(ops)
        found = await self._parallel.run(self._execute_group, [[ops[place] for place in group] for group in groups])
        for place, reply in pair_replies(groups, found):
            replies[place] = reply
        left = [place for place, reply in enumerate(replies) if reply is SEND_UNBATCHED]
        found = await self._parallel.run(self.execute, [ops[place] for place in left])
        for place, reply in zip(left, found, strict=True):
            replies[place] = reply
        return replies

    async def _execute_group(self, ops: Sequence[Op[Any]]) -> list[Any]:
        if len(ops) == 1:
            return [await self.execute(ops[0])]
        return await self._follow(plan_batch(self._plans, ops))

    async def migrate(self) -> list[str]:
        return await self._follow(schema.upgrade(self._plans))

    async def aclose(self) -> None:
        self._closed = True  # async only
        await self._parallel.aclose()
        if self._owned:
            await self._client.close()

    async def _follow(self, plan: Plan[MongoCommand, R]) -> R:
        try:
            return await afollow(plan, self._send)
        except LockNotAvailable as error:
            raise errors.lock_timeout_error() from error

    async def _send(self, command: MongoCommand) -> Mapping[str, Any]:
        # async only
        # AsyncMongoClient.close() does nothing on a client that was never used: such a client would connect now.
        if self._closed:
            raise StoreUnavailable("this store was closed; open a new one")
        try:
            reply: Mapping[str, Any] = await self._database.command(command.body, codec_options=CODEC)
        except Exception as error:
            found = errors.translate_error(error)
            if found is error:
                raise
            raise found from error
        problem = errors.find_reply_error(reply, existing_allowed=command.existing_allowed)
        if problem is not None:
            raise problem
        return reply
