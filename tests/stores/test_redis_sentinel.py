"""Sentinels promote a replica under load: on request, and after the primary was killed. No acknowledged write is lost.

The tests use threads on Redis and tasks on Valkey. The sentinels are Valkey's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.redis import AsyncRedisStore, RedisStore
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from tests.opening import unique, with_option
from tests.servers.ports import free_port
from tests.servers.valkey import FAST_DOWN_AFTER_MS, SLOW_DOWN_AFTER_MS, RedisServer, Sentinel, ValkeyServer
from tests.stores.redis_load import Load, find_lost
from tests.stores.redis_pair import TIMEOUT_SECONDS, Pair, start_pair
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("redis sentinel"), pytest.mark.timeout(600)]

COLOURS = {ValkeyServer: "async", RedisServer: "sync"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(ValkeyServer, id="valkey-async", marks=pytest.mark.store("redis")),
        pytest.param(RedisServer, id="redis8-sync", marks=pytest.mark.store("redis8")),
    ],
)
def servers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    yield from start_pair(request.param)


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.restore()
    return servers


@pytest.fixture
def colour(servers: Pair) -> str:
    return COLOURS[type(servers.primary)]


@pytest.fixture
def sentinels(pair: Pair) -> Iterator[list[Sentinel]]:
    """Three sentinels; two of them must agree."""
    own = [Sentinel(pair.primary) for _ in range(3)]
    for sentinel in own:
        sentinel.start()
    until(
        lambda: all(each.knows(replicas=1, sentinels=2) for each in own),
        TIMEOUT_SECONDS,
        "sentinels to know each other",
    )
    yield own
    for sentinel in own:
        sentinel.kill()
        sentinel.stop()


def sentinel_url(sentinels: list[Sentinel], prefix: str, **options: str) -> str:
    places = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    url = f"redis+sentinel://{places}/0?master={Sentinel.master}&prefix={prefix}"
    for name, value in options.items():
        url = with_option(url, name, value)
    return url


def is_promoted(sentinels: list[Sentinel], pair: Pair) -> bool:
    """True if all sentinels name the former replica as the primary, and it accepts writes."""
    if any(each.primary_port() != pair.replica.port for each in sentinels):
        return False
    with pair.replica.client() as client:
        return str(client.info("replication")["role"]) == "master"


def order_and_check(sentinels: list[Sentinel], pair: Pair) -> bool:
    """Ask for a failover, again if needed, and return True once it has happened."""
    sentinels[0].order_failover(away_from=pair.primary.port)
    return is_promoted(sentinels, pair)


def test_a_promotion_by_order_under_load(pair: Pair, sentinels: list[Sentinel], colour: str) -> None:
    """SENTINEL FAILOVER: both servers are alive, and all clients move to the new primary."""
    url = sentinel_url(sentinels, unique() + ":", wait="1", wait_timeout="4")
    assert diagnose(url).label == "exactly-once-capable"
    load = Load(url, colour)
    try:
        load.wait_for_more()
        until(lambda: order_and_check(sentinels, pair), TIMEOUT_SECONDS, "the promotion")
        pair.swap()
        pair.follow()  # the sentinels do this too, but only after ten seconds
        load.wait_for_more()
    finally:
        acknowledged = load.stop()
    check = open_store(url)
    assert find_lost(check, acknowledged) == []
    check.close()


def test_a_primary_is_killed_under_load(pair: Pair, sentinels: list[Sentinel], colour: str) -> None:
    """SIGKILL, with `wait=1`: the sentinels promote the replica, and nothing that was acknowledged is lost."""
    url = sentinel_url(sentinels, unique() + ":", wait="1", wait_timeout="4")
    load = Load(url, colour)
    try:
        load.wait_for_more()
        pair.primary.kill()
        for each in sentinels:
            each.set_down_after(FAST_DOWN_AFTER_MS)
        until(lambda: is_promoted(sentinels, pair), TIMEOUT_SECONDS, "the promotion")
        for each in sentinels:
            each.set_down_after(SLOW_DOWN_AFTER_MS)  # from here on a silent server is only busy
        pair.primary.resume()
        pair.swap()
        pair.follow()
        load.wait_for_more()
    finally:
        acknowledged = load.stop()
    assert load.errors, "the kill had no effect"
    check = open_store(url)
    assert find_lost(check, acknowledged) == []
    check.close()


def test_sentinels_that_know_nobody(pair: Pair, sentinels: list[Sentinel]) -> None:
    url = sentinel_url(sentinels, "t:").replace(f"master={Sentinel.master}", "master=nobody")
    store = open_store(url)
    with pytest.raises(StoreUnavailable, match="'nobody'") as caught:
        store.execute(claim())
    assert not isinstance(caught.value, StoreUnclear)
    with pytest.raises(StoreUnavailable, match="'nobody'"):
        diagnose(url)
    store.close()


async def test_no_sentinel_is_forgotten_by_callers_at_the_same_time(sentinels: list[Sentinel]) -> None:
    """The first sentinel is down. So each caller gets its answer from another one and moves that one to the front."""
    dead = free_port()
    url = sentinel_url(sentinels[:2], "t:").replace("//", f"//127.0.0.1:{dead},", 1)
    store = AsyncRedisStore.open(url)
    primary = store._pool.connection_kwargs["connection_pool"]
    known = set(primary.sentinels.sentinels)
    assert len(known) == 3
    found = await asyncio.gather(*(primary.get_master_address() for _ in range(20)))
    assert len(set(found)) == 1
    assert set(primary.sentinels.sentinels) == known
    await store.aclose()


def test_threads_forget_no_sentinel_either(sentinels: list[Sentinel]) -> None:
    dead = free_port()
    store = RedisStore.open(sentinel_url(sentinels[:2], "t:").replace("//", f"//127.0.0.1:{dead},", 1))
    primary = store._pool.connection_kwargs["connection_pool"]
    known = set(primary.sentinels.sentinels)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: primary.get_master_address(), range(40)))
    assert len(set(found)) == 1
    assert set(primary.sentinels.sentinels) == known
    store.close()
