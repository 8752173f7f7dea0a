"""Connections that the store keeps between operations: nobody waits for a kept one, and a dead one is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.postgres import lines
from retrysafe.stores.postgres.aio import AsyncPostgresStore
from retrysafe.stores.postgres.dialect import parse_url
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete, lookup
from tests.opening import store_url, unique, with_option
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

CALLERS, TIMES = 12, 20


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = with_option(store_url(request, tmp_path, "postgres"), "application_name", unique("lines"))
    store = open_store(found)
    store.migrate()
    store.close()
    return found


@pytest.fixture
def sessions(url: str) -> Iterator[Callable[[str], list[int]]]:
    """What the server says about the sessions of the store: their process ids, or whatever else is selected."""
    name = parse_url(url).conninfo.partition("application_name=")[2].partition("&")[0]
    with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:

        def select(what: str) -> list[int]:
            query = f"SELECT {what} FROM pg_stat_activity WHERE application_name = %s"
            return [row[0] for row in admin.execute(query, [name]).fetchall()]

        yield select


def open_sync(url: str, pool: int) -> PostgresStore:
    return PostgresStore.from_url(parse_url(with_option(url, "pool", str(pool))))


def open_async(url: str, pool: int) -> AsyncPostgresStore:
    return AsyncPostgresStore.from_url(parse_url(with_option(url, "pool", str(pool))))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_threads_do_not_wait_for_a_kept_connection(url: str, size: int) -> None:
    """More callers than connections. A connection that is kept while somebody waits for one would fail the test by the
    timeout of the pool."""
    store = open_sync(url, size)
    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            done = pool.map(lambda n: store.execute(claim(f"k{n}", now=None)).granted, range(CALLERS * TIMES))
            assert all(done)
    finally:
        store.close()


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_tasks_do_not_wait_for_a_kept_connection(url: str, size: int) -> None:
    store = open_async(url, size)
    try:

        async def caller(number: int) -> None:
            for time in range(TIMES):
                fresh = [claim(f"{number}-{time}-{part}", now=None) for part in range(2)]
                assert all(reply.granted for reply in await store.execute_many(fresh))
                assert (await store.execute(claim(f"{number}-{time}", now=None))).granted

        await asyncio.gather(*map(caller, range(CALLERS)))
    finally:
        await store.aclose()


def test_a_connection_is_kept_and_then_closed(url: str, sessions: Callable[[str], list[int]]) -> None:
    store = open_sync(url, 4)
    for number in range(5):
        store.execute(lookup(f"k{number}"))
        assert len(store._lines._kept) == 1
    store.close()
    until(lambda: not sessions("pid"), 30, "the end of the sessions")


async def test_a_connection_of_a_task_is_kept_and_then_closed(url: str, sessions: Callable[[str], list[int]]) -> None:
    store = open_async(url, 4)
    for number in range(5):
        await store.execute_many([claim(f"{number}-{part}") for part in range(2)])
        assert len(store._lines._kept) == 1
    assert len(sessions("pid")) == 1
    await store.aclose()
    until(lambda: not sessions("pid"), 30, "the end of the sessions")


def test_a_connection_that_is_old_goes_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool replaces connections after an hour, but sees only those that come back."""
    monkeypatch.setattr(lines, "MAX_KEPT_SECONDS", 0.0)
    store = open_sync(url, 4)
    store.execute(lookup("k"))
    assert not store._lines._kept
    store.close()


def test_a_pool_of_the_user_gets_its_connection_back(url: str) -> None:
    plain, names = url.partition("?")[0], parse_url(url).names
    with ConnectionPool(plain, min_size=1, max_size=1, open=True) as pool:
        store = PostgresStore(pool, table=names.bare)
        for _ in range(2):
            store.execute_many([claim("a", now=None), claim("b", now=None)])
            with pool.connection(timeout=30) as connection:
                assert not connection.autocommit


async def test_an_async_pool_of_the_user_gets_its_connection_back(url: str) -> None:
    plain, names = url.partition("?")[0], parse_url(url).names
    async with AsyncConnectionPool(plain, min_size=1, max_size=1, open=False) as pool:
        store = AsyncPostgresStore(pool, table=names.bare)
        for _ in range(2):
            await store.execute_many([claim("a", now=None), claim("b", now=None)])
            async with pool.connection(timeout=30) as connection:
                assert not connection.autocommit


def test_after_a_restart_one_caller_meets_a_dead_connection(url: str, sessions: Callable[[str], list[int]]) -> None:
    """Both kept connections are dead. The first caller that meets one of them replaces the other, too."""
    store = open_sync(url, 4)
    both = [store._lines.take("batch") for _ in range(2)]
    for line in both:
        store._lines.give_back(line, "batch")
    assert len(store._lines._kept) == 2
    # Again and again: the pool may just be making another connection, beside the two that are kept.
    until(lambda: not sessions("pg_terminate_backend(pid)"), 30, "the end of the sessions")
    with pytest.raises(StoreUnclear):
        store.execute_many([claim("a", now=None), claim("b", now=None)])
    assert all(reply.granted for reply in store.execute_many([claim("a", now=None), claim("b", now=None)]))
    assert store.execute(lookup("a", now=None)).record is not None
    store.close()


async def test_an_idle_connection_that_the_server_closes_does_not_keep_the_loop_busy(
    url: str, sessions: Callable[[str], list[int]]
) -> None:
    store = open_async(url, 4)
    await store.execute_many([claim("a", now=None), claim("b", now=None)])
    (line,) = store._lines._kept
    watched = [line._registered]
    sessions("pg_terminate_backend(pid)")
    async with asyncio.timeout(30):
        while watched[-1]:
            await asyncio.sleep(0.01)
            watched.append(line._registered)
    assert watched[0], "the socket stays registered after a batch"
    with pytest.raises(StoreUnclear):
        await store.execute_many([claim("c", now=None), claim("d", now=None)])
    assert all(reply.granted for reply in await store.execute_many([claim("c", now=None), claim("d", now=None)]))
    await store.aclose()


async def test_a_batch_that_is_cancelled_leaves_a_connection_that_is_not_kept(url: str) -> None:
    store = open_async(url, 4)
    first: list[Any] = await store.execute_many([claim("a"), claim("b")])
    with psycopg.connect(url.partition("?")[0]) as other:
        other.execute(f"SELECT 1 FROM {store.names.keys} FOR UPDATE")
        batch = asyncio.ensure_future(store.execute_many([complete(first[0]), complete(first[1])]))
        await asyncio.sleep(0)
        while store._lines._kept:  # until the batch has taken its connection
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        batch.cancel()
        with suppress(asyncio.CancelledError, StoreUnavailable):
            await batch
        assert not store._lines._kept
    assert await store.execute_many([complete(first[0]), complete(first[1])]) == [True, True]
    await store.aclose()
