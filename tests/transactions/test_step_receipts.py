"""Receipts of local steps, with every adapter: written with the user's work, and cleared away when it is over.
The store is in memory; the user's database is whatever the rig holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.errors import UsageError
from retrysafe.operations import Operation, receipts
from retrysafe.stores.registry import open_store
from retrysafe.transactions.sources import find_adapter
from retrysafe.worker.flows import arun, run
from retrysafe.worker.receipt_reaper import ReceiptReaper, ReceiptReaperCounts
from tests.transactions.rigs import AsyncCaller, Caller, World


@pytest.fixture(autouse=True)
def much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written down happened long enough ago."""
    monkeypatch.setattr(receipts, "KEPT_SECONDS", 0.0)


@pytest.fixture
def there(world: World, rig: str) -> World:
    """With tables for receipts, under the name that operations look for, and nothing in them."""
    if "table=" in world.url:
        store = open_store(world.plain)
        store.migrate()
        store.close()
    elif rig.startswith("duckdb"):
        world.safe.close()  # one at a time may have the file open
    return world


def selling(safe: RetrySafe, caller: Caller) -> Operation:
    op = safe.operation("sell")
    if isinstance(caller, AsyncCaller):

        @op.local
        async def take(tx: Any, item: str) -> str:
            await caller._write(tx, item)
            return item

        @op.body
        async def sold(item: str) -> Answer:
            return Answer(200, {"item": await take(item)})

        return op

    @op.local
    def put(tx: Any, item: str) -> str:
        caller._write(tx, item)
        return item

    @op.body
    def body(item: str) -> Answer:
        return Answer(200, {"item": put(item)})

    return op


def sold(caller: Caller, op: Operation, item: str) -> Answer:
    async def awaited() -> Answer:
        return await op(item, key=item)  # type: ignore[no-any-return]

    return caller.runner.run(awaited()) if isinstance(caller, AsyncCaller) else op(item, key=item)


def cleared(caller: Caller, safe: RetrySafe) -> ReceiptReaperCounts:
    story = ReceiptReaper(safe, batch=1).tick_flow()
    if isinstance(caller, AsyncCaller):
        return caller.runner.run(arun(safe, story))
    return run(safe, story, lambda seconds: None)


def counted(there: World, caller: Caller) -> int:
    text = "SELECT count(*) FROM retrysafe_receipts"
    if not there.url.startswith("duckdb"):
        return int(there.query(text)[0][0])
    if not callable(caller.given):
        return int(caller.given.execute(text).fetchone()[0])
    with caller.given() as cursor:
        return int(cursor.execute(text).fetchone()[0])


def test_with_every_adapter(there: World, caller: Callable[[], Caller]) -> None:
    user = caller()
    safe = RetrySafe(f"memory://{uuid4().hex}", tx=user.given, forms="current")
    op = selling(safe, user)
    if there.url.startswith("mongodb"):
        with pytest.raises(UsageError, match="cannot run in a MongoDB transaction"):
            sold(user, op, "a")
        assert cleared(user, safe) == ReceiptReaperCounts(0), "so there are none"
        return
    before = counted(there, user)
    for item in ("a", "b", "a"):
        assert sold(user, op, item) == Answer(200, {"item": item})
    assert counted(there, user) == before + 4
    done = cleared(user, safe)
    adapter = find_adapter(user.given, "sync")
    if adapter is not None and adapter.closes:
        assert done == ReceiptReaperCounts(0), "one connection, which somebody else may be using"
        return
    assert done.cleared == 2
    assert counted(there, user) == before
    assert sold(user, op, "a") == Answer(200, {"item": "a"}), "a replay asks for no receipt"
