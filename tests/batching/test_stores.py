"""Every store, both colours, batching on: many callers at once get what they would have got one by one."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.core.ops import Op, Renew
from retrysafe.errors import StoreError, StoreUnavailable
from retrysafe.stores.base import Store
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing import LoopThread
from retrysafe.testing.builders import claim, complete, lookup, record_of, release, renew
from tests import opening
from tests.opening import COLOURS, open_migrated, store_url, with_option

CALLERS = 40

SLOW = ("duckdb", "dynamodb")
"""A statement of DuckDB, a request of Amazon's SDK take milliseconds: they are left out where there are thousands."""

STORES = tuple(store for store in opening.STORES if store not in SLOW)

Together = Callable[[Sequence[Op[Any]]], list[Any]]
"""Run operations at the same time, each by a caller of its own; replies in their order."""

MATRIX, SLOW_MATRIX = (
    [
        pytest.param((store, colour), id=f"{store}-{colour}", marks=pytest.mark.store(store))
        for store in stores
        for colour in COLOURS
    ]
    for stores in (STORES, SLOW)
)


def in_threads(url: str, callers: int = CALLERS) -> Iterator[Together]:
    store = open_store(url, batching=True)
    pool = ThreadPoolExecutor(callers)
    barrier = threading.Barrier(callers)

    def share(ops: Sequence[Op[Any]]) -> list[Any]:
        barrier.wait(60)
        return [outcome(store, op) for op in ops]

    def together(ops: Sequence[Op[Any]]) -> list[Any]:
        shares = list(pool.map(share, [ops[number::callers] for number in range(callers)], timeout=120))
        return [shares[place % callers][place // callers] for place in range(len(ops))]

    yield together
    pool.shutdown()
    store.close()


def outcome(store: Store, op: Op[Any]) -> Any:
    try:
        return store.execute(op)
    except Exception as error:
        return error


def in_tasks(url: str) -> Iterator[Together]:
    loop, store = LoopThread(), open_async_store(url, batching=True)

    async def gather(ops: Sequence[Op[Any]]) -> list[Any]:
        return await asyncio.gather(*(store.execute(op) for op in ops), return_exceptions=True)

    yield lambda ops: loop.run(gather(ops))
    loop.run(store.aclose())
    loop.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    found = with_pool(store_url(request, tmp_path, request.param[0]))
    do = open_migrated(found, "sync")
    yield found
    do.close()


def with_pool(url: str) -> str:
    return with_option(url, "pool", "4") if url.startswith("postgresql") else url


@pytest.fixture
def together(request: pytest.FixtureRequest, url: str) -> Iterator[Together]:
    colour = request.node.callspec.params["url"][1]
    yield from (in_threads(url) if colour == "sync" else in_tasks(url))


every_store = pytest.mark.parametrize("url", MATRIX, indirect=True)
slow_ones_too = pytest.mark.parametrize("url", [*MATRIX, *SLOW_MATRIX], indirect=True)


@slow_ones_too
def test_distinct_keys(url: str, together: Together) -> None:
    """The replies are those of the reference store, in order; and what is stored is what was said."""
    ops = [claim(f"k{number}", now=1) for number in range(120)]
    reference = MemoryStore()
    held = together(ops)
    assert held == [reference.execute(op) for op in ops]
    next_ops: list[Op[Any]] = []
    for number, reply in enumerate(held):
        kinds = (renew, complete, release)
        next_ops.append(kinds[number % 3](reply, now=2))
    stale = [complete(record_of(reply)._replace(attempt=7), b"zombie", now=2) for reply in held[:20]]
    assert together(next_ops) == [True] * 120
    assert together(stale) == [False] * 20
    for op in next_ops:
        reference.execute(op)
    do = open_migrated(url, "sync")
    for key in range(120):
        assert do(lookup(f"k{key}", now=3)) == reference.execute(lookup(f"k{key}", now=3))
    do.close()


@slow_ones_too
def test_same_keys(url: str, together: Together) -> None:
    """One grant per key and attempt, whoever asks; everybody else learns who holds it."""
    ops = [claim(f"k{number % 7}", lease=30, on_lapse="rerun", now=0) for number in range(140)]
    first = together(ops)
    again = together([claim(f"k{number % 7}", lease=30, on_lapse="rerun", now=31) for number in range(140)])
    for attempt, replies in ((1, first), (2, again)):
        granted = [record_of(reply) for reply in replies if reply.granted]
        assert Counter((record.key, record.attempt) for record in granted) == Counter(
            {(f"k{number}", attempt): 1 for number in range(7)}
        )
        owner = {record.key: record.token for record in granted}
        assert all(record_of(reply).token == owner[record_of(reply).key] for reply in replies)
    late = [complete(reply, b"late", now=32) for reply in first if reply.granted]
    assert together(late) == [False] * 7
    right = [complete(reply, b"right", now=32) for reply in again if reply.granted]
    assert together(right) == [True] * 7
    assert together(right) == [True] * 7, "an answer that is sent again is recognised"
    replays = together([claim(f"k{number % 7}", now=33) for number in range(70)])
    assert all(not reply.granted and record_of(reply).answer.body == b"right" for reply in replays)  # type: ignore[union-attr]


def answer_all(together: Together, ops: list[Op[Any]]) -> list[Any]:
    """The replies. A renewal that meets the lock of another batch for too long is refused, and sent again, as a
    heartbeat does (decision 79)."""
    replies = list(together(ops))
    deadline = time.monotonic() + 120
    while held := [at for at, reply in enumerate(replies) if isinstance(reply, StoreUnavailable)]:
        assert all(type(ops[at]) is Renew for at in held), [replies[at] for at in held]
        assert time.monotonic() < deadline, f"{len(held)} renewals were never answered"
        for at, reply in zip(held, together([ops[at] for at in held]), strict=True):
            replies[at] = reply
    return replies


@every_store
@pytest.mark.timeout(180)
def test_no_wake_up_is_lost(url: str, together: Together) -> None:
    """Thousands of operations in random order over few keys: everybody is answered, and each answer adds up."""
    chance = random.Random(7)
    ops: list[Op[Any]] = [claim(f"k{number % 50}", lease=1000, now=0) for number in range(1000)]
    chance.shuffle(ops)
    held = [reply for reply in together(ops) if reply.granted]
    assert len(held) == 50
    moves: list[Op[Any]] = [renew(reply, lease=1000, now=1) for reply in held for _ in range(10)]
    moves += [claim(f"k{number % 50}", now=1) for number in range(500)]
    moves += [complete(record_of(reply)._replace(attempt=9), b"zombie", now=1) for reply in held for _ in range(4)]
    chance.shuffle(moves)
    counted = Counter(str(reply if isinstance(reply, bool) else reply.granted) for reply in answer_all(together, moves))
    assert counted == {"True": 500, "False": 700}
    ends: list[Op[Any]] = [complete(reply, b"done", now=2) for reply in held for _ in range(4)]
    chance.shuffle(ends)
    assert all(together(ends))


@pytest.mark.parametrize("store", [pytest.param(store, marks=pytest.mark.store(store)) for store in STORES])
@pytest.mark.timeout(180)
def test_callers_that_come_and_go_all_the_time(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each caller asks again as soon as it is answered: the lane falls idle and is taken again at any moment."""
    found = with_pool(store_url(request, tmp_path, store))
    loop, opened = LoopThread(), open_async_store(found, batching=True)

    async def caller(name: int) -> int:
        for turn in range(40):
            held = await opened.execute(claim(f"{name}-{turn}", now=0))
            assert await opened.execute(complete(held, now=1))
            if turn % 5 == name % 5:
                await asyncio.sleep(0)
        return 40

    async def everybody() -> list[int]:
        return await asyncio.gather(*(caller(name) for name in range(24)))

    try:
        loop.run(opened.migrate())
        assert loop.run(everybody()) == [40] * 24
    finally:
        loop.run(opened.aclose())
        loop.close()


@pytest.mark.store("postgres")
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("url", [("postgres", "sync")], indirect=True, ids=["postgres"])
def test_commits_are_coalesced(url: str, colour: str) -> None:
    """The point of it all, counted by the server itself."""
    number = 600
    with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
        for run in in_threads(url) if colour == "sync" else in_tasks(url):
            run([claim(f"warm{colour}{each}", now=0) for each in range(CALLERS)])
            before = commits(admin)
            held = run([claim(f"c{colour}{each}", now=0) for each in range(number)])
            assert all(reply.granted for reply in held)
            assert all(run([complete(reply, b"x", now=1) for reply in held]))
        # Statistics reach the shared table when a session ends at the latest, and the stores are closed now.
        spent = commits(admin) - before
    assert spent < number, f"{spent} commits for {2 * number} writes"


def commits(admin: psycopg.Connection[Any]) -> int:
    admin.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
    row = admin.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("bad", ["POST /a\0b", "POST /a\ud800b"], ids=["nul", "surrogate"])
@every_store
def test_a_text_the_store_cannot_hold_fails_alone(url: str, together: Together, bad: str) -> None:
    """A client chooses the path of its request: what a driver refuses to write must not spoil other people's claims."""
    store = open_store(url)
    ops = [claim(f"n{number}", now=0) for number in range(80)]
    ops[37] = claim("n37", target=bad, now=0)
    replies = together(ops)
    refused = [number for number, reply in enumerate(replies) if isinstance(reply, Exception)]
    assert refused in ([], [37])
    for reply in replies[37:38]:
        if isinstance(reply, Exception):
            assert isinstance(reply, StoreError)
            assert not isinstance(reply, StoreUnavailable), "sending it again would not help"
    assert (store.execute(lookup("n37", now=0)).record is None) == (refused == [37])
    store.close()
