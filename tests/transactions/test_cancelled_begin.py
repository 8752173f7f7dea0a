"""A cancellation while SQLite's write lock is awaited leaves no transaction behind (I29)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from retrysafe import RetrySafe
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.on_sqlite3 import Sqlite3Tx

pytestmark = pytest.mark.store("sqlite")


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_cancelled_begin_frees_the_file(tmp_path: Path, cancels: int) -> None:
    path = tmp_path / "shop.db"
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
    asyncio.run(cancel_while_it_begins(path, cancels))


async def cancel_while_it_begins(path: Path, cancels: int) -> None:
    begins = threading.Event()
    safe = RetrySafe(f"sqlite:///{path}")
    holder = sqlite3.connect(path, isolation_level=None)
    async with aiosqlite.connect(path) as own:

        @safe.transactional("{key}", tx=own)
        async def pay(tx: Any, key: str) -> str:
            return key

        # The driver's thread says when it runs the statement, which then waits for the lock.
        await own.set_trace_callback(lambda sql: begins.set() if sql == "BEGIN IMMEDIATE" else None)
        holder.execute("BEGIN IMMEDIATE")
        call = asyncio.ensure_future(pay("a"))
        assert await asyncio.to_thread(begins.wait, 30)
        for _ in range(cancels):
            call.cancel()
            await asyncio.sleep(0)
        holder.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await call
        await own.execute("SELECT 1")  # whatever the driver's thread still had to do is done
        assert not own.in_transaction
        holder.execute("BEGIN IMMEDIATE")  # raises if the file is locked
        holder.execute("ROLLBACK")
        assert await pay("b") == "b", "the connection can be used again"
    holder.close()
    await safe.aclose()


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("kind", ["engine", "sessionmaker"])
def test_a_cancelled_begin_of_sqlalchemy_keeps_its_connection(tmp_path: Path, kind: str, hooked: bool) -> None:
    path = tmp_path / "shop.db"
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
    asyncio.run(cancel_while_sqlalchemy_begins(path, kind, hooked))


async def cancel_while_sqlalchemy_begins(path: Path, kind: str, hooked: bool) -> None:
    begins = threading.Event()
    safe = RetrySafe(f"sqlite:///{path}")
    holder = sqlite3.connect(path, isolation_level=None)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    watch_begins(engine, begins, hooked)
    dropped: list[Any] = []  # SQLAlchemy closes them later, or leaves them to the garbage collector

    @event.listens_for(engine.sync_engine, "invalidate")
    def on_invalidate(connection: Any, *_: Any) -> None:
        dropped.append(connection)

    @safe.transactional("{key}", tx=engine if kind == "engine" else async_sessionmaker(engine))
    async def pay(tx: Any, key: str) -> str:
        return key

    try:
        holder.execute("BEGIN IMMEDIATE")
        call = asyncio.ensure_future(pay("a"))
        assert await asyncio.to_thread(begins.wait, 30)
        call.cancel()
        await asyncio.sleep(0)
        holder.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await call
        assert dropped == [], "the transaction was rolled back on its own connection"
        holder.execute("BEGIN IMMEDIATE")  # raises if the file is locked
        holder.execute("ROLLBACK")
        assert await pay("b") == "b"
    finally:
        holder.close()
        await engine.dispose()
        await safe.aclose()


def watch_begins(engine: AsyncEngine, begins: threading.Event, hooked: bool) -> None:
    """The driver's thread says when it runs the statement. `hooked`: SQLAlchemy's own recipe, which sends a BEGIN."""

    @event.listens_for(engine.sync_engine, "connect")
    def trace(connection: Any, _: Any) -> None:
        def say(sql: str) -> None:
            if sql == "BEGIN IMMEDIATE":
                begins.set()

        connection.run_async(lambda driver: driver.set_trace_callback(say))
        if hooked:
            connection.isolation_level = None

    if hooked:

        @event.listens_for(engine.sync_engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")


def test_an_interruption_after_the_begin_leaves_no_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may arrive between any two statements of ours."""
    path = tmp_path / "shop.db"
    own = sqlite3.connect(path, isolation_level=None)
    send = Sqlite3Tx.send

    def send_and_interrupt(tx: Sqlite3Tx, statement: Statement) -> Any:
        found = send(tx, statement)
        if statement.sql == "BEGIN IMMEDIATE":
            raise KeyboardInterrupt
        return found

    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()

        @safe.transactional("{key}", tx=own)
        def pay(tx: Any, key: str) -> str:
            return key

        with monkeypatch.context() as patch:
            patch.setattr(Sqlite3Tx, "send", send_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                pay("a")
        assert not own.in_transaction
        assert pay("a") == "a"
    own.close()
