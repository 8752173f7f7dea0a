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
from retrysafe.stores.mysql.dialect import CAPABILITIES, DIALECT, Location
from retrysafe.stores.mysql.errors import demoted, held_elsewhere, meaning, too_many_undone
from retrysafe.stores.mysql.settings import SILENCE
from retrysafe.stores.mysql.talking import BEGIN, COMMIT, ROLLBACK, Heard, Rows, in_step, packets, read
from retrysafe.stores.sql.attempts import TRIES, Again
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT, names
from retrysafe.stores.sql.plans import Held, Plans, by_id

R = TypeVar("R")


class AsyncMysqlStore:
    """Made from a URL, or over your own function that connects, which is asked for each new connection. It belongs to
    one event loop."""

    capabilities = CAPABILITIES
    mixes = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(
        self,
        connect: AsyncConnect,
        *,
        table: str = DEFAULT,
        pool: int = 10,
        pool_timeout: float = 5.0,
        url: str = "URL",
    ) -> None:
        self.names = names(table)
        self._url = url
        self._plans = Plans(DIALECT, self.names)
        self._pool = AsyncPool(connect, pool, pool_timeout)

    @classmethod
    def from_url(cls, at: Location) -> AsyncMysqlStore:
        connect = partial(asyncmy.connect, **at.connect)
        return cls(connect, table=at.names.bare, pool=at.pool, pool_timeout=at.pool_timeout, url=at.url)

    async def execute(self, op: Op[R]) -> R:
        return await self._retrying(lambda say: afollow(self._plans.of(op), _one(say)))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one transaction; sorted by id, so that two batches wait for each other in the same order."""
        return await self._retrying(lambda say: self._together(say, ops), batch=True) if ops else []

    async def _together(self, say: Say, ops: Sequence[Op[Any]]) -> list[Any]:
        ordered = by_id(ops)
        await say([BEGIN])
        try:
            found = await afollow(in_step([self._plans.of(op) for _, op in ordered]), say)
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
        return await self._retrying(lambda say: afollow(schema.upgrade(self.names), _one(say)))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _retrying(self, work: Callable[[Say], Awaitable[R]], batch: bool = False) -> R:
        for _ in range(TRIES):
            try:
                return await self._once(work, batch)
            except Again:
                continue
            except Held as error:
                raise held_elsewhere() from error
            except StoreUnclear:
                self._pool.drain()
                raise
            except StoreUnavailable as error:
                if demoted(error):
                    self._pool.drain()
                raise
        raise too_many_undone(TRIES)

    async def _once(self, work: Callable[[Say], Awaitable[R]], batch: bool) -> R:
        """What the server refused leaves the connection as good as before; only a broken one is thrown away, one that
        leads to a server which takes no writes, or one whose caller was cancelled."""
        async with self._pool.connection() as connection:
            try:
                done: R | Exception = await work(lambda statements: _say(connection, statements, self._url, batch))
            except StoreUnclear:
                raise
            except Exception as error:
                if demoted(error):
                    raise
                done = error
        if isinstance(done, Exception):
            raise done
        return done


Say = Callable[[Sequence[Statement]], Awaitable[list[Rows]]]


def _one(say: Say) -> Callable[[Statement], Awaitable[Rows]]:
    async def send(statement: Statement) -> Rows:
        return (await say([statement]))[0]

    return send


async def _say(connection: Any, statements: Sequence[Statement], url: str, batch: bool) -> list[Rows]:
    """Statements in, the rows of each out."""
    try:
        async with asyncio.timeout(SILENCE), connection.cursor() as cursor:
            return await afollow(packets(statements, cursor.mogrify), lambda packet: _hear(cursor, packet))
    except Exception as error:
        found = meaning(error, url, batch)
        if found is error:
            raise  # already one of ours: it must not become its own cause
        raise found from error


async def _hear(cursor: Any, packet: str) -> Heard:
    answers: list[Rows] = []
    try:
        await cursor.execute(packet)
        while True:
            answers.append(read(await cursor.fetchall() if cursor.description else None, cursor.rowcount))
            if not await cursor.nextset():
                return Heard(answers, None)
    except MySQLError as error:
        return Heard(answers, error)
