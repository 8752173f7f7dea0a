"""Adapter for aiosqlite, which runs sqlite3 in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite

from retrysafe.engine.cancellation import finish_despite_cancellation
from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import SQLITE, DialectName, Rows, fill_now
from retrysafe.transactions.locks import take_write_lock
from retrysafe.transactions.on_sqlite3 import NESTED_FIX


class AiosqliteTx:
    dialect = SQLITE
    dialect_name: DialectName = "sqlite"

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.handle = connection

    @property
    def committed(self) -> bool | None:
        """As in Sqlite3Tx."""
        return None if is_open(self.handle) else True

    async def send(self, statement: Statement) -> Rows:
        async with self.handle.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(statement.sql, fill_now(statement.values))
            return [tuple(row) for row in await cursor.fetchall()]

    async def flush(self) -> None:
        """A connection has no pending objects."""


@asynccontextmanager
async def begin_on_connection(given: aiosqlite.Connection) -> AsyncIterator[AiosqliteTx]:
    if given.in_transaction:
        raise NestedTransaction("the aiosqlite Connection", NESTED_FIX)
    tx = AiosqliteTx(given)
    await take_lock_whole(tx)
    try:
        yield tx
        await given.execute("COMMIT")
    except BaseException:
        await roll_back(given)
        raise


async def take_lock_whole(tx: AiosqliteTx) -> None:
    """Take the write lock. A cancellation waits for the end of it: aiosqlite's thread begins the transaction although
    nobody awaits it any more, and then nobody would end it. That wait is bounded by LOCK_TIMEOUT_SECONDS."""
    taking = asyncio.ensure_future(afollow(take_write_lock(begun=False), tx.send))
    held = await finish_despite_cancellation(taking)
    if held.first is None:
        return taking.result()
    if taking.exception() is None:
        await roll_back(tx.handle)
    raise held.first


async def roll_back(given: aiosqlite.Connection) -> None:
    if is_open(given) and given.in_transaction:
        await given.execute("ROLLBACK")


def is_open(given: aiosqlite.Connection) -> bool:
    """Whether the user's code has not closed the connection."""
    return given._connection is not None


@asynccontextmanager
async def begin_on_path(given: str | Path) -> AsyncIterator[AiosqliteTx]:
    async with aiosqlite.connect(given, isolation_level=None) as opened, begin_on_connection(opened) as tx:
        yield tx


async def ensure_started(given: aiosqlite.Connection) -> aiosqlite.Connection:
    """Open the connection if it is not open. `aiosqlite.connect()` returns one that opens when it is awaited, and
    awaiting it twice fails."""
    return given if given._connection is not None else await given
