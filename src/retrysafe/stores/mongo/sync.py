"""The sync colour of MongoDB, through pymongo's MongoClient. Safe to use from many threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pymongo import MongoClient

from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.mongo import errors, schema
from retrysafe.stores.mongo.batches import SEND_UNBATCHED, group_batches, plan_batch
from retrysafe.stores.mongo.client import CODEC, MAX_PARALLEL_OPS, make_client
from retrysafe.stores.mongo.outbox import plan_operation
from retrysafe.stores.mongo.plans import Command, LockNotAvailable, MongoPlans
from retrysafe.stores.mongo.settings import CAPABILITIES, LOCK_TIMEOUT_SECONDS, Collections, MongoLocation, build_names

R = TypeVar("R")


class MongoStore:
    """From your client, or with `open` from a URL. Closes the client only if it owns it."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(
        self,
        client: MongoClient[Any],
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
        self._parallel: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @classmethod
    def open(cls, at: MongoLocation) -> MongoStore:
        client: MongoClient[Any] = make_client(MongoClient, at.url)
        return cls(client, at.database, collection=at.collection, patience=at.patience, owned=True)

    def execute(self, op: Op[R]) -> R:
        return self._follow(plan_operation(self._plans, op))

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Claims, completions and renewals in a command each; the others side by side, as writes of their own."""
        replies: list[Any] = [SEND_UNBATCHED] * len(ops)
        for lane in group_batches(ops):
            found = self._follow(plan_batch(self._plans, [ops[place] for place in lane]))
            for place, reply in zip(lane, found, strict=True):
                replies[place] = reply
        left = [place for place, reply in enumerate(replies) if reply is SEND_UNBATCHED]
        for place, reply in zip(left, self._execute_parallel([ops[place] for place in left]), strict=True):
            replies[place] = reply
        return replies

    def _execute_parallel(self, ops: Sequence[Op[Any]]) -> list[Any]:
        if len(ops) < 2:
            return [self.execute(op) for op in ops]
        waiting = [self._executor().submit(self.execute, op) for op in ops]
        failed = [error for error in (each.exception() for each in waiting) if error is not None]
        if failed:
            raise failed[0]
        return [each.result() for each in waiting]

    def migrate(self) -> list[str]:
        return self._follow(schema.upgrade(self._plans))

    def close(self) -> None:
        if self._parallel is not None:
            self._parallel.shutdown()
        if self._owned:
            self._client.close()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._parallel is None:
                self._parallel = ThreadPoolExecutor(MAX_PARALLEL_OPS, "retrysafe-mongodb")
            return self._parallel

    def _follow(self, plan: Plan[Command, R]) -> R:
        try:
            return follow(plan, self._send)
        except LockNotAvailable as error:
            raise errors.lock_timeout_error() from error

    def _send(self, command: Command) -> Mapping[str, Any]:
        try:
            reply: Mapping[str, Any] = self._database.command(command.body, codec_options=CODEC)
        except Exception as error:
            found = errors.translate_error(error)
            if found is error:
                raise
            raise found from error
        problem = errors.find_reply_error(reply)
        if problem is not None:
            raise problem
        return reply
