"""Adapter for psycopg 3: connections and pools, sync and async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from retrysafe.errors import NestedTransaction, UsageError
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import PSYCOPG, DialectName, Rows
from retrysafe.transactions.hand_endings import watch_connection

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

NESTED_FIX = "commit or roll back first, or pass a pool"


class PsycopgTx:
    dialect = PSYCOPG
    dialect_name: DialectName = "postgres"

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.handle = connection
        self.endings = watch_connection(connection)

    @property
    def committed(self) -> bool | None:
        return self.endings.committed

    def send(self, statement: Statement) -> Rows:
        with self.endings.pause(), self.handle.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(statement.sql, statement.values or None)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def flush(self) -> None:
        """A connection has no pending objects."""


class AsyncPsycopgTx:
    dialect = PSYCOPG
    dialect_name: DialectName = "postgres"

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.handle = connection
        self.endings = watch_connection(connection)

    @property
    def committed(self) -> bool | None:
        return self.endings.committed

    async def send(self, statement: Statement) -> Rows:
        with self.endings.pause():
            async with self.handle.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(statement.sql, statement.values or None)
                return list(await cursor.fetchall()) if cursor.description is not None else []

    async def flush(self) -> None:
        """A connection has no pending objects."""


@contextmanager
def begin_on_connection(given: psycopg.Connection[Any]) -> Iterator[PsycopgTx]:
    refuse_nested(given)
    with given.transaction():
        tx = PsycopgTx(given)
        with closing(tx.endings):
            yield tx


@asynccontextmanager
async def abegin_on_connection(given: psycopg.AsyncConnection[Any]) -> AsyncIterator[AsyncPsycopgTx]:
    refuse_nested(given)
    async with given.transaction():
        tx = AsyncPsycopgTx(given)
        with closing(tx.endings):
            yield tx


@contextmanager
def begin_on_pool(given: ConnectionPool[Any]) -> Iterator[PsycopgTx]:
    with given.connection() as taken, begin_on_connection(taken) as tx:
        yield tx


@asynccontextmanager
async def abegin_on_pool(given: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncPsycopgTx]:
    async with given.connection() as taken, abegin_on_connection(taken) as tx:
        yield tx


def refuse_nested(given: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if given.pgconn.pipeline_status != PipelineStatus.OFF:
        raise UsageError(
            f"the psycopg {type(given).__name__} is in pipeline mode, in which what is sent is answered only later, so "
            "nobody could ask the key first: leave out `with connection.pipeline()`, or pass another connection"
        )
    if given.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise NestedTransaction(f"the psycopg {type(given).__name__}", NESTED_FIX)
