"""The async colour of MySQL and MariaDB, through asyncmy. The twin of sync.py; what they share is in talking.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncmy
from asyncmy.errors import MySQLError

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import afollow
from retrysafe.stores.mysql import schema
from retrysafe.stores.mysql.aiopool import AsyncConnect, AsyncPool
from retrysafe.stores.mysql.dialect import CAPABILITIES, DIALECT, MysqlLocation
from retrysafe.stores.mysql.errors import is_demoted, lock_timeout_error, too_many_deadlocks_error, translate_error
from retrysafe.stores.mysql.protocol import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    PacketReply,
    Rows,
    merge_plans,
    plan_packets,
    read_rows,
)
from retrysafe.stores.mysql.settings import READ_TIMEOUT_SECONDS
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import LockNotAvailable, SqlPlans, sort_by_id
from retrysafe.stores.sql.retrying import MAX_DEADLOCK_TRIES, RetryNow

R = TypeVar("R")


class AsyncMysqlStore:
    """Made from a URL, or over your own function that connects, which is asked for each new connection. It belongs to
    one event loop."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(
        self,
        connect: AsyncConnect,
        *,
        table: str = DEFAULT_PREFIX,
        pool: int = 10,
        pool_timeout: float = 5.0,
        url: str = "URL",
    ) -> None:
        self.names = build_names(table)
        self._url = url
        self._plans = SqlPlans(DIALECT, self.names)
        self._pool = AsyncPool(connect, pool, pool_timeout)

    @classmethod
    def from_url(cls, at: MysqlLocation) -> AsyncMysqlStore:
        connect = partial(asyncmy.connect, **at.connect)
        return cls(connect, table=at.names.bare, pool=at.pool, pool_timeout=at.pool_timeout, url=at.url)

    async def execute(self, op: Op[R]) -> R:
        return await self._with_retries(lambda say: afollow(self._plans.plan_operation(op), _send_one(say)))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one transaction; sorted by id, so that two batches wait for each other in the same order."""
        return await self._with_retries(lambda say: self._execute_in_transaction(say, ops), batch=True) if ops else []

    async def _execute_in_transaction(self, say: Send, ops: Sequence[Op[Any]]) -> list[Any]:
        ordered = sort_by_id(ops)
        await say([BEGIN])
        try:
            found = await afollow(merge_plans([self._plans.plan_operation(op) for _, op in ordered]), say)
            await say([COMMIT])
        except StoreUnclear:
            raise  # nobody listens any more: the server rolls back by itself, unless the commit was heard
        except Exception:
            await say([ROLLBACK])
            raise
        replies: list[Any] = [None] * len(ops)
        for (place, _), reply in zip(ordered, found, strict=True):
            replies[place] = reply
        return replies

    async def migrate(self) -> list[str]:
        return await self._with_retries(lambda say: afollow(schema.upgrade(self.names), _send_one(say)))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _with_retries(self, work: Callable[[Send], Awaitable[R]], batch: bool = False) -> R:
        for _ in range(MAX_DEADLOCK_TRIES):
            try:
                return await self._run_once(work, batch)
            except RetryNow:
                continue
            except LockNotAvailable as error:
                raise lock_timeout_error() from error
            except StoreUnclear:
                self._pool.drain()
                raise
            except StoreUnavailable as error:
                if is_demoted(error):
                    self._pool.drain()
                raise
        raise too_many_deadlocks_error(MAX_DEADLOCK_TRIES)

    async def _run_once(self, work: Callable[[Send], Awaitable[R]], batch: bool) -> R:
        """What the server refused leaves the connection as good as before; only a broken one is thrown away, one that
        leads to a server which takes no writes, or one whose caller was cancelled."""
        async with self._pool.connection() as connection:
            try:
                done: R | Exception = await work(lambda statements: _send(connection, statements, self._url, batch))
            except StoreUnclear:
                raise
            except Exception as error:
                if is_demoted(error):
                    raise
                done = error
        if isinstance(done, Exception):
            raise done
        return done


Send = Callable[[Sequence[Statement]], Awaitable[list[Rows]]]


def _send_one(say: Send) -> Callable[[Statement], Awaitable[Rows]]:
    async def send(statement: Statement) -> Rows:
        return (await say([statement]))[0]

    return send


async def _send(connection: Any, statements: Sequence[Statement], url: str, batch: bool) -> list[Rows]:
    """Statements in, the rows of each out."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_SECONDS), connection.cursor() as cursor:
            return await afollow(plan_packets(statements, cursor.mogrify), lambda packet: _receive(cursor, packet))
    except Exception as error:
        found = translate_error(error, url, batch)
        if found is error:
            raise  # already one of ours: it must not become its own cause
        raise found from error


async def _receive(cursor: Any, packet: str) -> PacketReply:
    answers: list[Rows] = []
    try:
        await cursor.execute(packet)
        while True:
            answers.append(read_rows(await cursor.fetchall() if cursor.description else None, cursor.rowcount))
            if not await cursor.nextset():
                return PacketReply(answers, None)
    except MySQLError as error:
        return PacketReply(answers, error)
