"""A server that is killed and comes back: one claim finds out, those behind it are told at once, and when it is back
they go through again without anybody having waited for them. How long it took is printed, never asserted: what counts
is how many of them went out to look for the server themselves."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim
from retrysafe.errors import StoreOutage, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.redis import RedisStore
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper
from retrysafe.testing import LoopThread
from retrysafe.testing.builders import claim
from tests.opening import COLOURS, Do, open_do, open_migrated, unique, with_option
from tests.servers import PostgresServer, ValkeyServer
from tests.servers.base import Server
from tests.servers.valkey import ValkeyCluster
from tests.waiting import until

CLAIMS = 50
LEASE = 1.0
"""Seconds: for so long a claim that lost its reply goes on asking what became of it."""

SERVERS: dict[str, tuple[Callable[[], Server], str]] = {
    "redis": (ValkeyServer, "?socket_connect_timeout=10"),
    "postgres": (PostgresServer, "?pool=2&pool_timeout=1&connect_timeout=1"),
}

pytestmark = pytest.mark.timeout(600)


class Counted(StoreWrapper):
    claims = 0

    def execute(self, op: Any) -> Any:
        self.claims += isinstance(op, Claim)
        return super().execute(op)


class AsyncCounted(AsyncStoreWrapper):
    claims = 0

    async def execute(self, op: Any) -> Any:
        self.claims += isinstance(op, Claim)
        return await super().execute(op)


class Down:
    """A RetrySafe on a server of its own, in either colour."""

    def __init__(self, store: str, colour: str, server: Server | None = None) -> None:
        make, options = SERVERS.get(store, (ValkeyServer, "?socket_connect_timeout=10"))
        self.server = server or make().start()
        patiently = RetrySafe(self.server.url)  # a second is enough to find a server gone, not to set one up
        patiently.migrate()
        patiently.close()
        self.safe = RetrySafe(self.server.url + options, batching=False)
        self.loop = LoopThread() if colour == "async" else None
        self.sync, self.aio = Counted(self.safe.store), AsyncCounted(self.safe.async_store)
        self.safe._sync, self.safe._async = self.sync, self.aio

    def claim(self) -> Any:
        return self.execute(claim(unique(), lease=LEASE, now=None))

    def execute(self, op: Claim) -> Any:
        return self.safe.execute(op) if self.loop is None else self.loop.run(self.safe.aexecute(op))

    def sent(self) -> int:
        return self.sync.claims + self.aio.claims

    def open(self) -> bool:
        performer: Any = self.safe.performer() if self.loop is None else self.safe.async_performer()
        return bool(performer._circuit.away)

    def close(self) -> None:
        if self.loop is None:
            self.safe.close()
        else:
            self.loop.run(self.safe.aclose())
            self.loop.close()
        self.server.stop()


@pytest.fixture(autouse=True)
def only_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim goes to look for itself, and none that was given up is sent again: it is the probe that is tried."""
    monkeypatch.setattr("retrysafe.engine.circuit.TRIAL_CLAIM_SECONDS", math.inf)
    monkeypatch.setattr("retrysafe.engine.orphaned_claims.MAX_ORPHAN_SENDS", 0)


@pytest.fixture
def down(store: str, colour: str, request: pytest.FixtureRequest) -> Iterator[Down]:
    request.getfixturevalue(f"{store}_url")  # says so where there is no such server to be had
    made = Down(store, colour)
    yield made
    made.close()


def found_out_by(down: Down) -> bool:
    """One more claim. The first few may still be carried out by a server that is dying, or meet a connection that the
    pool does not know is dead."""
    with suppress(StoreOutage):
        down.claim()
    return down.open()


def granted_by(down: Down) -> bool:
    """A busy machine may take longer than a second for a connection: then another claim."""
    with suppress(StoreOutage):
        return bool(down.claim().granted)
    return False


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("store", [pytest.param(store, marks=pytest.mark.store(store)) for store in SERVERS])
def test_killed_and_back(down: Down, store: str, colour: str, capsys: pytest.CaptureFixture[str]) -> None:
    until(lambda: granted_by(down), 120, "a first claim")
    down.server.kill()
    began = time.monotonic()
    until(lambda: found_out_by(down), 120, "a claim that finds out")
    found_out, sent = time.monotonic() - began, down.sent()
    began = time.monotonic()
    for _ in range(CLAIMS):
        with pytest.raises(StoreUnreachable):
            down.claim()
    refused = time.monotonic() - began
    assert down.sent() == sent, "none of them went to look for itself"
    down.server.resume()
    began = time.monotonic()
    until(lambda: not down.open(), 120, "the probe to find the server")
    back = time.monotonic() - began
    assert down.sent() == sent, "it was the probe that found it"
    until(lambda: granted_by(down), 120, "a claim of the server that is back")
    with capsys.disabled():
        print(
            f"\n{store} {colour}: found out after {found_out:.2f} s, then {CLAIMS} claims refused in {refused:.3f} s;"
        )
        print(f"let in again {back:.2f} s after it was back")


@pytest.mark.store("postgres")
@pytest.mark.parametrize("colour", COLOURS)
def test_a_pool_finds_the_server_after_a_long_outage(
    postgres_url: str, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg's pool waits twice as long after each failure, up to five minutes, and callers do not make it hurry. Here
    it waits for ever after the second failure: the calls themselves must find the server."""
    monkeypatch.setattr("psycopg_pool.base.AttemptWithBackoff.DELAY_BACKOFF", 1_000_000.0)
    server = PostgresServer().start()
    try:
        open_migrated(server.url, "sync").close()
        do = open_do(f"{server.url}?pool_timeout=1", colour)
        until(lambda: is_granted(do), 120, "a first claim")
        server.kill()
        for _ in range(4):  # with the third, the pool has failed twice; a dying server may still grant the first
            until(lambda: not is_granted(do), 120, "a claim that fails")
        server.resume()
        until(lambda: is_granted(do), 120, "a claim of the server that is back")
        do.close()
    finally:
        server.stop()


def is_granted(do: Do) -> bool:
    with suppress(StoreOutage, StoreUnclear):
        return bool(do(claim(unique(), now=None)).granted)
    return False


async def test_a_task_that_probes_ends_with_its_loop(redis_url: str) -> None:
    """Nothing is left behind where nobody calls `aclose`."""
    safe = RetrySafe("redis://127.0.0.1:1/0")
    for _ in range(2):
        with pytest.raises(StoreUnreachable):
            await safe.aexecute(claim("k", now=None))
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert "AsyncPerformer._probe_until_back" in names
    await safe.aclose()


@pytest.mark.store("postgres")
def test_an_exhausted_pool_is_contention(postgres_url: str) -> None:
    """Somebody has the only connection: that is no reason to refuse everybody else."""
    with ConnectionPool(postgres_url, min_size=1, max_size=1, timeout=0.2, open=True) as pool:
        store = PostgresStore(pool)
        with pool.connection(timeout=60), pytest.raises(StoreUnavailable) as raised:
            store.execute(claim("k", now=None))
        assert type(raised.value) is StoreUnavailable
        store.close()


@pytest.mark.store("redis")
def test_an_exhausted_redis_pool_is_contention(redis_url: str) -> None:
    store = RedisStore.open(with_option(with_option(redis_url, "max_connections", "1"), "timeout", "0.2"))
    try:
        held = store._pool.get_connection()
        with pytest.raises(StoreUnavailable) as raised:
            store.execute(claim("k", now=None))
        assert type(raised.value) is StoreUnavailable
        store._pool.release(held)
    finally:
        store.close()


@pytest.mark.store("redis_cluster")
@pytest.mark.parametrize("colour", COLOURS)
def test_one_node_of_a_cluster(colour: str, redis_cluster_url: str) -> None:
    """The keys of the others go on; its own are refused without another look at it."""
    cluster = ValkeyCluster()
    cluster.start()
    down = Down("redis_cluster", colour, cluster)
    try:
        ops = [claim(unique(), lease=LEASE, now=None) for _ in range(CLAIMS)]
        assert all(down.execute(op).granted for op in ops)
        cluster.primaries[0].kill()
        assert await_away(down)
        sent = down.sent()
        granted = refused = 0
        for op in (claim(unique(), lease=LEASE, now=None) for _ in range(CLAIMS)):
            try:
                granted += down.execute(op).granted
            except StoreUnreachable:
                refused += 1
        assert granted > 0
        assert refused > 0
        assert down.sent() == sent + granted, "of those that were refused none went to look for itself"
        cluster.primaries[0].resume()
        until(lambda: not down.open(), 120, "the probe to find the node")
        assert all(down.claim().granted for _ in range(CLAIMS))
    finally:
        down.close()


def await_away(down: Down) -> bool:
    for _ in range(10 * CLAIMS):
        with suppress(StoreOutage):
            down.claim()
        if down.open():
            return True
    return False
