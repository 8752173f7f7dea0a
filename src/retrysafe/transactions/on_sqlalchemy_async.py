"""SQLAlchemy 2, async: the twins of on_sqlalchemy.py. A file of its own, because its import wants greenlet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.transactions.base import POSTGRES, SQLITE, Rows, dialect_named
from retrysafe.transactions.on_sqlalchemy import FIX, begun, clause, timed_for
from retrysafe.transactions.write_lock import locked


class AsyncSqlalchemyTx:
    """The twin of SqlalchemyTx."""

    def __init__(self, handle: AsyncSession | AsyncConnection, vendor: str) -> None:
        self.handle = handle
        self.dialect_name = dialect_named(vendor)
        self.dialect: Dialect = POSTGRES if self.dialect_name == "postgres" else SQLITE

    async def _connect(self) -> AsyncConnection:
        return self.handle if isinstance(self.handle, AsyncConnection) else await self.handle.connection()

    async def send(self, statement: Statement) -> Rows:
        connected = await self._connect()
        result = await connected.execute(clause(statement.sql), timed_for(self.dialect_name, statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def flush(self) -> None:
        if isinstance(self.handle, AsyncSession):
            await self.handle.flush()

    async def lock(self) -> None:
        if self.dialect_name == "sqlite":
            connected = await self._connect()
            assert connected.sync_connection is not None
            await afollow(locked(begun=begun(connected.sync_connection)), self.send)


@asynccontextmanager
async def session(given: AsyncSession) -> AsyncIterator[AsyncSqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction("the SQLAlchemy AsyncSession", FIX)
    await given.begin()
    try:
        tx = AsyncSqlalchemyTx(given, (await given.connection()).dialect.name)
        await tx.lock()
        yield tx
        await given.commit()
    except BaseException:
        await given.rollback()
        raise


@asynccontextmanager
async def connection(given: AsyncConnection) -> AsyncIterator[AsyncSqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction("the SQLAlchemy AsyncConnection", FIX)
    await given.begin()
    try:
        tx = AsyncSqlalchemyTx(given, given.dialect.name)
        await tx.lock()
        yield tx
        await given.commit()
    except BaseException:
        await given.rollback()
        raise


@asynccontextmanager
async def engine(given: AsyncEngine) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with given.connect() as taken, connection(taken) as tx:
        yield tx


@asynccontextmanager
async def maker(given: Callable[[], AsyncSession]) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with given() as made, session(made) as tx:
        yield tx


@asynccontextmanager
async def scoped(given: Callable[[], AsyncSession]) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with session(given()) as tx:
        yield tx
