# sync.py is generated from this file: run `make twins` after a change.
"""The async store of MySQL and MariaDB, through asyncmy: a connection per operation, a commit per statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncmy
from asyncmy.errors import MySQLError

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnclear
from retrysafe.stores.base import afollow
from retrysafe.stores.mysql.apool import AsyncConnect, build_pool
from retrysafe.stores.mysql.dialect import CAPABILITIES, DIALECT, READ_TIMEOUT_SECONDS, MysqlLocation, upgrade
from retrysafe.stores.mysql.errors import ERROR_FACTORIES, translate_error
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
from retrysafe.stores.sql.aretrying import arun_with_retries
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import SqlPlans, sort_by_id

R = TypeVar("R")


class AsyncMysqlStore:
    """Made from a URL, or from your own function that connects. The pool calls it for each new connection."""

    capabilities = CAPABILITIES
    recreates_tables = True

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
        self._pool = build_pool(connect, pool, pool_timeout)

    @classmethod
    def from_url(cls, at: MysqlLocation) -> AsyncMysqlStore:
        connect = partial(asyncmy.connect, **at.connect)
        return cls(connect, table=at.names.bare, pool=at.pool, pool_timeout=at.pool_timeout, url=at.url)

    async def execute(self, op: Op[R]) -> R:
        return await self._with_retries(lambda send: afollow(self._plans.plan_operation(op), _send_one(send)))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute in one transaction. Operations are sorted by id, so that two batches lock rows in the same order."""
        return await self._with_retries(lambda send: self._execute_in_transaction(send, ops), batch=True) if ops else []

    async def _execute_in_transaction(self, send: Send, ops: Sequence[Op[Any]]) -> list[Any]:
        ordered = sort_by_id(ops)
        await send([BEGIN])
        try:
            found = await afollow(merge_plans([self._plans.plan_operation(op) for _, op in ordered]), send)
            await send([COMMIT])
        except StoreUnclear:
            raise  # the connection is lost: the server rolls back by itself, unless it has received the COMMIT
        except Exception:
            await send([ROLLBACK])
            raise
        replies: list[Any] = [None] * len(ops)
        for (place, _), reply in zip(ordered, found, strict=True):
            replies[place] = reply
        return replies

    async def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        return await self._with_retries(lambda send: afollow(upgrade(self.names, recreate=recreate), _send_one(send)))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _with_retries(self, work: Callable[[Send], Awaitable[R]], batch: bool = False) -> R:
        return await arun_with_retries(
            self._pool, lambda connection: work(partial(_send, connection, self._url, batch)), ERROR_FACTORIES
        )


Send = Callable[[Sequence[Statement]], Awaitable[list[Rows]]]


def _send_one(send: Send) -> Callable[[Statement], Awaitable[Rows]]:
    """A sender of single statements, as a plan needs it."""

    async def send_one(statement: Statement) -> Rows:
        return (await send([statement]))[0]

    return send_one


async def _send(connection: Any, url: str, batch: bool, statements: Sequence[Statement]) -> list[Rows]:
    """Send statements and return the rows of each."""
    try:
        # sync: with connection.cursor() as cursor:
        async with asyncio.timeout(READ_TIMEOUT_SECONDS), connection.cursor() as cursor:
            return await afollow(plan_packets(statements, cursor.mogrify), lambda packet: _receive(cursor, packet))
    except Exception as error:
        found = translate_error(error, url, batch)
        if found is error:
            raise  # already translated: an error must not become its own cause
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
