"""Operations that wait for locked rows leave connections to others, and above all to renewals (I33)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.stores.sql.shares import AsyncShares, Shares, Use, compute_shares, use_of
from retrysafe.testing.builders import claim, complete, record_of, renew
from tests.faults.row_holders import HOLDERS
from tests.opening import COLOURS, open_do
from tests.stores.locked_rows import POOL, LockedRows, build_rows
from tests.waiting import until

HELD = 12


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.store(name)) for name in HOLDERS])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockedRows]:
    with build_rows(request, monkeypatch, request.param) as made:
        yield made


def test_completions_that_wait_leave_connections_to_threads(rows: LockedRows) -> None:
    """Twelve completions wait for rows, and there are four connections. One is for batches, one for renewals."""
    *held, free, ended = rows.claim_all(HELD + 2)
    store = open_store(rows.url)
    with ThreadPoolExecutor(HELD) as threads:
        with rows.locked(*held):
            waiting = [threads.submit(store.execute, complete(each, now=None)) for each in held]
            until(lambda: rows.count_waiting() >= 2, 60, "completions that wait")
            assert store.execute(renew(free, now=None)) is True
            assert store.execute_many([complete(ended, now=None), claim("new", now=None)])[0] is True
            assert not any(each.done() for each in waiting), "none of them had to end first"
            assert rows.count_waiting() < POOL
        assert [each.result(60) for each in waiting] == [True] * HELD
    store.close()


async def test_completions_that_wait_leave_connections_to_tasks(rows: LockedRows) -> None:
    *held, free, ended = await asyncio.to_thread(rows.claim_all, HELD + 2)
    store = open_async_store(rows.url)
    with rows.locked(*held):
        waiting = [asyncio.ensure_future(store.execute(complete(each, now=None))) for each in held]
        async with asyncio.timeout(60):
            await asyncio.to_thread(until, lambda: rows.count_waiting() >= 2, 60, "completions that wait")
            assert await store.execute(renew(free, now=None)) is True
            assert (await store.execute_many([complete(ended, now=None), claim("new", now=None)]))[0] is True
        assert not any(each.done() for each in waiting), "none of them had to end first"
    assert await asyncio.gather(*waiting) == [True] * HELD
    await store.aclose()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_renewal_is_not_refused_because_of_the_row_of_another(rows: LockedRows, colour: str) -> None:
    """The batch was refused as a whole, and each renewal was sent alone: the held ones first took their connections."""
    held, free = rows.claim_all(2)
    do = open_do(rows.url, colour)
    both: list[Op[Any]] = [renew(each, lease=900, now=None) for each in (held, free)]
    with rows.locked(held):
        with pytest.raises(BatchRefused) as refused:
            do.many(both)
        bad, good = refused.value.replies
        assert good is True
        assert isinstance(bad, StoreUnavailable)
        assert "held by an open transaction" in str(bad)
    assert do.many(both) == [True, True]
    do.close()


# Without a server ---------------------------------------------------------------------------------


def no_share_error(use: Use, size: int, seconds: float) -> TimeoutError:
    return TimeoutError(f"{use}: all of {size} in use for {seconds:g} s")


@pytest.mark.parametrize(
    ("size", "alone", "together"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 3), (10, 7, 9), (30, 20, 29)]
)
def test_shares(size: int, alone: int, together: int) -> None:
    assert compute_shares(size) == (alone, together)


def test_uses() -> None:
    owned = record_of(MemoryStore().execute(claim("owned")))
    one, many = [claim("a")], [claim("a"), claim("b")]
    beats: list[Op[Any]] = [renew(owned), renew(owned)]
    assert [use_of(ops) for ops in ([complete(owned)], one, many, beats[:1], beats, [*one, *beats])] == [
        "alone", "batch", "batch", "renewal", "renewal", "batch",
    ]  # fmt: skip


def test_a_share_that_is_used_up_is_waited_for_as_long_as_for_the_pool() -> None:
    shares = Shares(2, 0.01, no_share_error)
    shares.enter("alone")
    for use in ("alone", "batch"):
        with pytest.raises(TimeoutError, match=r"all of 2 in use for 0\.01 s"):
            shares.enter(use)
    shares.enter("renewal")
    shares.leave("renewal")
    shares.leave("alone")
    shares.enter("batch")


async def test_a_share_of_tasks_that_is_used_up_is_waited_for_as_long_as_for_the_pool() -> None:
    shares = AsyncShares(2, 0.01, no_share_error)
    await shares.enter("alone")
    for use in ("alone", "batch"):
        with pytest.raises(TimeoutError, match=r"all of 2 in use for 0\.01 s"):
            await shares.enter(use)
    await shares.enter("renewal")
    shares.leave("alone")
    await shares.enter("batch")


def test_a_pool_without_a_limit_has_no_shares() -> None:
    shares = Shares(0, 0.0, no_share_error)
    for _ in range(100):
        shares.enter("alone")
