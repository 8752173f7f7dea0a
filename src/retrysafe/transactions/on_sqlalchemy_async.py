"""Adapter for SQLAlchemy 2, async: the twins of on_sqlalchemy.py. A separate file: its import needs greenlet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from retrysafe.engine.cancellation import finish_despite_cancellation
from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.transactions.base import Rows, dialect_for_vendor
from retrysafe.transactions.locks import plan_steps, take_write_lock
from retrysafe.transactions.on_sqlalchemy import (
    DIALECTS,
    NESTED_FIX,
    CommitWatcher,
    MysqlLock,
    build_clause,
    fill_now_for,
    is_begun,
    read_step_rows,
)


class AsyncSqlalchemyTx:
    """The async twin of SqlalchemyTx."""

    def __init__(self, handle: AsyncSession | AsyncConnection, first: AsyncConnection) -> None:
        self.handle = handle
        self._first = first
        self.dialect_name = dialect_for_vendor(first.dialect.name)
        self.dialect: Dialect = DIALECTS[self.dialect_name]
        self._mysql_lock = MysqlLock()
        self._on: AsyncConnection | None = None
        assert first.sync_connection is not None
        watched = handle.sync_session if isinstance(handle, AsyncSession) else first.sync_connection
        self._commits = CommitWatcher(watched, first.sync_connection)

    @property
    def committed(self) -> bool | None:
        return self._commits.committed

    async def send_direct(self, statement: Statement) -> Rows:
        """As in SqlalchemyTx."""
        result = await self._first.execute(build_clause(statement.sql), dict(statement.values))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def send(self, statement: Statement) -> Rows:
        connected = await get_connection(self.handle)
        if self.dialect_name == "mysql":
            return await self._send_steps(connected, statement)
        result = await connected.execute(build_clause(statement.sql), fill_now_for(self.dialect_name, statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def _send_steps(self, connected: AsyncConnection, statement: Statement) -> Rows:
        async def execute_step(text: str) -> Rows:
            return read_step_rows(await connected.execute(build_clause(text), dict(statement.values)))

        assert connected.sync_connection is not None
        self._mysql_lock.record_lock(connected.sync_connection, statement)
        self._on = connected
        return await afollow(plan_steps(statement), execute_step)

    async def unlock(self) -> None:
        self._commits.unwatch()
        if self._on is not None and not self._on.closed:
            await self._on.run_sync(lambda _: self._mysql_lock.release())

    async def flush(self) -> None:
        if isinstance(self.handle, AsyncSession):
            await self.handle.flush()

    async def lock(self) -> None:
        """Take SQLite's write lock. A cancellation waits for the end of it: SQLAlchemy drops a connection whose
        statement was cancelled, and aiosqlite's thread begins the transaction nevertheless. Then nobody would end it.
        That wait is bounded by LOCK_TIMEOUT_SECONDS."""
        if self.dialect_name != "sqlite":
            return
        connected = await get_connection(self.handle)
        assert connected.sync_connection is not None
        plan = take_write_lock(begun=is_begun(connected.sync_connection))
        taking = asyncio.ensure_future(afollow(plan, self.send))
        held = await finish_despite_cancellation(taking)
        if held.first is not None:
            taking.exception()  # the caller rolls back in any case
            raise held.first
        taking.result()


async def get_connection(handle: AsyncSession | AsyncConnection) -> AsyncConnection:
    return handle if isinstance(handle, AsyncConnection) else await handle.connection()


@asynccontextmanager
async def begin_on_session(given: AsyncSession) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with _begin_tx(given, "the SQLAlchemy AsyncSession") as tx:
        yield tx


@asynccontextmanager
async def begin_on_connection(given: AsyncConnection) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with _begin_tx(given, "the SQLAlchemy AsyncConnection") as tx:
        yield tx


@asynccontextmanager
async def _begin_tx(given: AsyncSession | AsyncConnection, name: str) -> AsyncIterator[AsyncSqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction(name, NESTED_FIX)
    await given.begin()
    tx = None
    try:
        tx = AsyncSqlalchemyTx(given, await get_connection(given))
        await tx.lock()
        yield tx
        await given.commit()
    except BaseException:
        await given.rollback()
        raise
    finally:
        if tx is not None:
            await tx.unlock()


@asynccontextmanager
async def begin_on_engine(given: AsyncEngine) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with given.connect() as taken, begin_on_connection(taken) as tx:
        yield tx


@asynccontextmanager
async def begin_on_sessionmaker(given: Callable[[], AsyncSession]) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with given() as made, begin_on_session(made) as tx:
        yield tx


@asynccontextmanager
async def begin_on_scoped_session(given: Callable[[], AsyncSession]) -> AsyncIterator[AsyncSqlalchemyTx]:
    async with begin_on_session(given()) as tx:
        yield tx
