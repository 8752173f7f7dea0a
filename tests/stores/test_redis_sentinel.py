"""Sentinels promote a replica under load: by order, and because the primary was killed. Nothing acknowledged is lost.

Threads on Redis, tasks on Valkey; the sentinels are Valkey's.
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
from tests.servers.valkey import HASTY, STEADY, RedisServer, Sentinel, ValkeyServer
from tests.stores.redis_load import Load, lost
from tests.stores.redis_pair import PATIENCE, Pair, started
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
    yield from started(request.param)


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.restore()
    return servers


@pytest.fixture
def colour(servers: Pair) -> str:
    return COLOURS[type(servers.primary)]


@pytest.fixture
def sentinels(pair: Pair) -> Iterator[list[Sentinel]]:
    """Three, of which two must agree."""
    own = [Sentinel(pair.primary) for _ in range(3)]
    for sentinel in own:
        sentinel.start()
    until(lambda: all(each.knows(replicas=1, sentinels=2) for each in own), PATIENCE, "sentinels to know everybody")
    yield own
    for sentinel in own:
        sentinel.kill()
        sentinel.stop()


def watched(sentinels: list[Sentinel], prefix: str, **options: str) -> str:
    places = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    url = f"redis+sentinel://{places}/0?master={Sentinel.master}&prefix={prefix}"
    for name, value in options.items():
        url = with_option(url, name, value)
    return url


def promoted(sentinels: list[Sentinel], pair: Pair) -> bool:
    """They send clients to the other one, and it takes writes."""
    if any(each.primary_port() != pair.replica.port for each in sentinels):
        return False
    with pair.replica.client() as client:
        return str(client.info("replication")["role"]) == "master"


def ordered(sentinels: list[Sentinel], pair: Pair) -> bool:
    """Whether it was done by now; else it is ordered, once more if need be."""
    sentinels[0].order_failover(away_from=pair.primary.port)
    return promoted(sentinels, pair)


def test_a_promotion_by_order_under_load(pair: Pair, sentinels: list[Sentinel], colour: str) -> None:
    """SENTINEL FAILOVER: both live, and everybody moves over."""
    url = watched(sentinels, unique() + ":", wait="1", wait_timeout="4")
    assert diagnose(url).label == "exactly-once-capable"
    load = Load(url, colour)
    try:
        load.go_on()
        until(lambda: ordered(sentinels, pair), PATIENCE, "the promotion")
        pair.swap()
        pair.follow()  # the sentinels would see to that, but take ten seconds
        load.go_on()
    finally:
        told = load.stop()
    check = open_store(url)
    assert lost(check, told) == []
    check.close()


def test_a_primary_is_killed_under_load(pair: Pair, sentinels: list[Sentinel], colour: str) -> None:
    """SIGKILL, with `wait=1`: the sentinels promote the replica, and nothing that was acknowledged is lost."""
    url = watched(sentinels, unique() + ":", wait="1", wait_timeout="4")
    load = Load(url, colour)
    try:
        load.go_on()
        pair.primary.kill()
        for each in sentinels:
            each.patience(HASTY)
        until(lambda: promoted(sentinels, pair), PATIENCE, "the promotion")
        for each in sentinels:
            each.patience(STEADY)  # who is silent from here on is only busy
        pair.primary.resume()
        pair.swap()
        pair.follow()
        load.go_on()
    finally:
        told = load.stop()
    assert load.troubles, "the kill was not felt"
    check = open_store(url)
    assert lost(check, told) == []
    check.close()


def test_sentinels_that_know_nobody(pair: Pair, sentinels: list[Sentinel]) -> None:
    url = watched(sentinels, "t:").replace(f"master={Sentinel.master}", "master=nobody")
    store = open_store(url)
    with pytest.raises(StoreUnavailable, match="'nobody'") as caught:
        store.execute(claim())
    assert not isinstance(caught.value, StoreUnclear)
    with pytest.raises(StoreUnavailable, match="'nobody'"):
        diagnose(url)
    store.close()


async def test_no_sentinel_is_forgotten_by_callers_at_the_same_time(sentinels: list[Sentinel]) -> None:
    """The first of them is down, so that each caller has another one answer, and puts it in front."""
    dead = free_port()
    url = watched(sentinels[:2], "t:").replace("//", f"//127.0.0.1:{dead},", 1)
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
    store = RedisStore.open(watched(sentinels[:2], "t:").replace("//", f"//127.0.0.1:{dead},", 1))
    primary = store._pool.connection_kwargs["connection_pool"]
    known = set(primary.sentinels.sentinels)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: primary.get_master_address(), range(40)))
    assert len(set(found)) == 1
    assert set(primary.sentinels.sentinels) == known
    store.close()
