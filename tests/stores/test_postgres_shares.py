"""Operations that wait for locked rows leave connections to others, and above all to renewals (I33)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool, PoolTimeout

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.postgres import deadline
from retrysafe.stores.postgres.aio import AsyncPostgresStore
from retrysafe.stores.postgres.dialect import DIALECT, parse_url
from retrysafe.stores.postgres.errors import no_share_error
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.stores.sql.shares import AsyncShares, Shares, compute_shares, use_of
from retrysafe.testing.builders import claim, complete, record_of, renew
from tests.opening import store_url, with_option
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

POOL, HELD = 4, 12
LONG = replace(DIALECT, limit="patience AS (SELECT set_config('lock_timeout', '120000', true))")
"""Owners' writes wait until they are let go: which of two comes first is then no matter of time."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(deadline, "STATEMENT_TIMEOUT_SECONDS", 120.0)
    found = with_option(store_url(request, tmp_path, "postgres"), "pool", str(POOL))
    store = open_store(found)
    store.migrate()
    store.close()
    return found


def open_sync(url: str) -> PostgresStore:
    store = PostgresStore.from_url(parse_url(url))
    store._plans = SqlPlans(LONG, store.names)
    return store


def open_async(url: str) -> AsyncPostgresStore:
    store = AsyncPostgresStore.from_url(parse_url(url))
    store._plans = SqlPlans(LONG, store.names)
    return store


def claim_all(url: str, count: int) -> list[Any]:
    store = open_store(url)
    try:
        return [record_of(store.execute(claim(f"k{n}", lease=600, now=None))) for n in range(count)]
    finally:
        store.close()


@contextmanager
def locked(url: str, records: list[Any]) -> Iterator[psycopg.Connection[Any]]:
    """The rows of these records are locked by another transaction."""
    with psycopg.connect(url.partition("?")[0]) as other:
        keys = parse_url(url).names.keys
        found = other.execute(f"SELECT id FROM {keys} WHERE id = ANY(%s) FOR UPDATE", [[each.id for each in records]])
        assert found.rowcount == len(records)
        yield other


def count_waiting(url: str) -> int:
    with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        row = admin.execute(query, [f"%{parse_url(url).names.keys}%"]).fetchone()
        assert row is not None
        return int(row[0])


def test_completions_that_wait_leave_connections_to_threads(url: str) -> None:
    """Twelve completions wait for rows, and there are four connections. One is for batches, one for renewals."""
    *held, free, ended = claim_all(url, HELD + 2)
    store = open_sync(url)
    with ThreadPoolExecutor(HELD) as threads:
        with locked(url, held):
            waiting = [threads.submit(store.execute, complete(each, now=None)) for each in held]
            until(lambda: count_waiting(url) >= 2, 60, "completions that wait")
            assert store.execute(renew(free, now=None)) is True
            assert store.execute_many([complete(ended, now=None), claim("new", now=None)])[0] is True
            assert not any(each.done() for each in waiting), "none of them had to end first"
            assert count_waiting(url) < POOL
        assert [each.result(60) for each in waiting] == [True] * HELD
    store.close()


async def test_completions_that_wait_leave_connections_to_tasks(url: str) -> None:
    *held, free, ended = await asyncio.to_thread(claim_all, url, HELD + 2)
    store = open_async(url)
    with locked(url, held):
        waiting = [asyncio.ensure_future(store.execute(complete(each, now=None))) for each in held]
        async with asyncio.timeout(60):
            while await asyncio.to_thread(count_waiting, url) < 2:
                await asyncio.sleep(0.02)
            assert await store.execute(renew(free, now=None)) is True
            assert (await store.execute_many([complete(ended, now=None), claim("new", now=None)]))[0] is True
        assert not any(each.done() for each in waiting), "none of them had to end first"
    assert await asyncio.gather(*waiting) == [True] * HELD
    await store.aclose()


def test_a_renewal_is_not_refused_because_of_the_row_of_another(url: str) -> None:
    """The batch was refused as a whole, and each renewal was sent alone: the held ones first took their connections."""
    held, free = claim_all(url, 2)
    store = open_sync(url)
    with locked(url, [held]):
        with pytest.raises(BatchRefused) as refused:
            store.execute_many([renew(held, now=None), renew(free, now=None)])
        bad, good = refused.value.replies
        assert good is True
        assert isinstance(bad, StoreUnavailable)
        assert "held by an open transaction" in str(bad)
    assert store.execute_many([renew(held, now=None), renew(free, now=None)]) == [True, True]
    store.close()


def test_a_renewal_in_a_batch_waits_for_a_moment(url: str) -> None:
    """A lock that ends soon is waited for: another write of the same owner has it, often."""
    held, free = claim_all(url, 2)
    store = open_sync(url)
    with ThreadPoolExecutor(1) as threads, locked(url, [held]) as other:
        # 100 ms are too short for a busy machine: as often as it takes.
        for _ in range(100):
            replies = threads.submit(renew_both, store, held, free)
            until(lambda: replies.done() or count_waiting(url) > 0, 60, "a renewal that waits")  # noqa: B023
            other.rollback()
            if replies.result(60) == [True, True]:
                break
            other.execute(f"SELECT 1 FROM {store.names.keys} WHERE id = %s FOR UPDATE", [held.id])
        else:
            pytest.fail("it never waited")
    store.close()


def renew_both(store: PostgresStore, *records: Any) -> list[Any]:
    try:
        return store.execute_many([renew(each, now=None) for each in records])
    except BatchRefused as refused:
        return list(refused.replies)


def test_after_a_renewal_a_connection_is_kept_for_renewals(url: str) -> None:
    (record,) = claim_all(url, 1)
    store = open_sync(url)
    for _ in range(3):
        assert store.execute(renew(record, now=None)) is True
        assert len(store._lines._for_renewals) == 1
    store.execute(claim("other", now=None))
    assert len(store._lines._for_renewals) == 1
    store.close()
    assert not store._lines._for_renewals


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
        with pytest.raises(PoolTimeout, match=r"in use for 0\.01 s"):
            shares.enter(use)
    shares.enter("renewal")
    shares.leave("renewal")
    shares.leave("alone")
    shares.enter("batch")


async def test_a_share_of_tasks_that_is_used_up_is_waited_for_as_long_as_for_the_pool() -> None:
    shares = AsyncShares(2, 0.01, no_share_error)
    await shares.enter("alone")
    for use in ("alone", "batch"):
        with pytest.raises(PoolTimeout, match=r"in use for 0\.01 s"):
            await shares.enter(use)
    await shares.enter("renewal")
    shares.leave("alone")
    await shares.enter("batch")


def test_a_pool_without_a_limit_has_no_shares() -> None:
    shares = Shares(0, 0.0, no_share_error)
    for _ in range(100):
        shares.enter("alone")


def test_a_pool_of_the_user_has_shares_too(url: str) -> None:
    *held, free = claim_all(url, HELD + 1)
    plain, names = url.partition("?")[0], parse_url(url).names
    with ConnectionPool(plain, min_size=1, max_size=POOL, timeout=60, open=True) as pool:
        store = PostgresStore(pool, table=names.bare)
        store._plans = SqlPlans(LONG, names)
        with ThreadPoolExecutor(HELD) as threads:
            with locked(url, held):
                waiting = [threads.submit(store.execute, complete(each, now=None)) for each in held]
                until(lambda: count_waiting(url) >= 2, 60, "completions that wait")
                assert store.execute(renew(free, now=None)) is True
                assert not any(each.done() for each in waiting)
            assert [each.result(60) for each in waiting] == [True] * HELD
        store.close()
