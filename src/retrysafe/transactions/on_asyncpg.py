"""Adapter for asyncpg: connections and pools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

from retrysafe.errors import NestedTransaction
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import POSTGRES, DialectName, Rows, number_parameters
from retrysafe.transactions.hand_endings import watch_connection


class AsyncpgTx:
    """An open transaction on asyncpg, which has no types: its connection is Any here."""

    dialect = POSTGRES
    dialect_name: DialectName = "postgres"

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self.endings = watch_connection(connection)

    @property
    def committed(self) -> bool | None:
        return self.endings.committed

    async def send(self, statement: Statement) -> Rows:
        sql, names = number_parameters(statement.sql)
        found = await self.handle.fetch(sql, *(statement.values[name] for name in names))
        return [tuple(record) for record in found]

    async def flush(self) -> None:
        """A connection has no pending objects."""


@asynccontextmanager
async def begin_on_connection(given: Any) -> AsyncIterator[AsyncpgTx]:
    if given.is_in_transaction():
        raise NestedTransaction("the asyncpg Connection", "commit or roll back first, or pass a pool")
    async with given.transaction():
        tx = AsyncpgTx(given)
        with closing(tx.endings):
            yield tx


@asynccontextmanager
async def begin_on_pool(given: Any) -> AsyncIterator[AsyncpgTx]:
    async with given.acquire() as taken, begin_on_connection(taken) as tx:
        yield tx
