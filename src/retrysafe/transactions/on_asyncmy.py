"""Adapter for asyncmy: connections and pools. asyncmy has no types, so its connection is Any here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from asyncmy.constants import SERVER_STATUS
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import MYSQL, DialectName, Rows
from retrysafe.transactions.hand_endings import watch_connection
from retrysafe.transactions.locks import LOCK_PARAMETER, build_release_sql, plan_steps, read_rows

NESTED_FIX = "commit or roll back first (with autocommit off a mere query begins a transaction), or pass a pool"


class AsyncmyTx:
    """The async twin of PymysqlTx."""

    dialect = MYSQL
    dialect_name: DialectName = "mysql"

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self.endings = watch_connection(connection)
        self._lock: int | None = None

    @property
    def committed(self) -> bool | None:
        return self.endings.committed

    async def send(self, statement: Statement) -> Rows:
        self._lock = statement.values.get(LOCK_PARAMETER, self._lock)
        with self.endings.pause():
            return await afollow(plan_steps(statement), lambda step: self._execute_step(step, statement.values))

    async def _execute_step(self, step: str, values: Mapping[str, Any]) -> Rows:
        async with self.handle.cursor(Cursor) as cursor:
            await cursor.execute(step, dict(values) or None)
            return read_rows(await cursor.fetchall() if cursor.description else None, cursor.rowcount)

    async def flush(self) -> None:
        """A connection has no pending objects."""

    async def unlock(self) -> None:
        if self._lock is not None and is_usable(self.handle):
            with suppress(MySQLError, OSError):
                async with self.handle.cursor(Cursor) as cursor:
                    await cursor.execute(build_release_sql(self._lock))


@asynccontextmanager
async def begin_on_connection(given: Any) -> AsyncIterator[AsyncmyTx]:
    if is_usable(given) and given.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
        raise NestedTransaction("the asyncmy Connection", NESTED_FIX)
    await given.begin()
    tx = AsyncmyTx(given)
    try:
        yield tx
        await given.commit()
    except BaseException:
        if is_usable(given):
            with suppress(MySQLError, OSError):  # the connection is lost: the server has rolled back
                await given.rollback()
        raise
    finally:
        tx.endings.close()
        await tx.unlock()


@asynccontextmanager
async def begin_on_pool(given: Any) -> AsyncIterator[AsyncmyTx]:
    async with given.acquire() as taken, begin_on_connection(taken) as tx:
        yield tx


def is_usable(given: Any) -> bool:
    return bool(given.connected) and not given._stream_broken
