"""A cancellation while SQLite's write lock is awaited leaves no transaction behind (I29)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from retrysafe import RetrySafe

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
