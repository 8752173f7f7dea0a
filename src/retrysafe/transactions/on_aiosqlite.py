"""aiosqlite: sqlite3 in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import SQLITE, DialectName, Rows, fill_now
from retrysafe.transactions.on_sqlite3 import FIX
from retrysafe.transactions.write_lock import take_write_lock


class AiosqliteTx:
    dialect = SQLITE
    dialect_name: DialectName = "sqlite"

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.handle = connection

    @property
    def committed(self) -> bool | None:
        """The twin of Sqlite3Tx's."""
        return None if is_open(self.handle) else True

    async def send(self, statement: Statement) -> Rows:
        async with self.handle.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(statement.sql, fill_now(statement.values))
            return [tuple(row) for row in await cursor.fetchall()]

    async def flush(self) -> None:
        """A connection holds nothing back."""


@asynccontextmanager
async def connection(given: aiosqlite.Connection) -> AsyncIterator[AiosqliteTx]:
    if given.in_transaction:
        raise NestedTransaction("the aiosqlite Connection", FIX)
    tx = AiosqliteTx(given)
    await afollow(take_write_lock(begun=False), tx.send)
    try:
        yield tx
        await given.execute("COMMIT")
    except BaseException:
        await roll_back(given)
        raise


async def roll_back(given: aiosqlite.Connection) -> None:
    if is_open(given) and given.in_transaction:
        await given.execute("ROLLBACK")


def is_open(given: aiosqlite.Connection) -> bool:
    """Whether its user has left it open."""
    return given._connection is not None


@asynccontextmanager
async def path(given: str | Path) -> AsyncIterator[AiosqliteTx]:
    async with aiosqlite.connect(given, isolation_level=None) as opened, connection(opened) as tx:
        yield tx


async def started(given: aiosqlite.Connection) -> aiosqlite.Connection:
    """`aiosqlite.connect()` gives a connection that is not open before it is awaited; awaiting it twice fails."""
    return given if given._connection is not None else await given
