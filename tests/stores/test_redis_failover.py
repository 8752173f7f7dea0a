"""A replica is promoted at the worst moment. The tests look for the claims that had been acknowledged.

The doctor's verdict for the same URL must agree with what is lost. test_redis_sentinel.py does this under load.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.redis import AsyncRedisStore, RedisStore
from retrysafe.testing.builders import claim, complete, lookup, stats
from tests.faults.story import asked, eventually
from tests.opening import unique
from tests.servers.ports import free_port
from tests.servers.valkey import RedisServer, ValkeyServer
from tests.stores.redis_pair import TIMEOUT_SECONDS, WAIT_OPTIONS, Pair, count_replicas, start_pair, url_with
from tests.waiting import until

pytestmark = [pytest.mark.xdist_group("redis failover"), pytest.mark.timeout(600)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(ValkeyServer, id="valkey", marks=pytest.mark.store("redis")),
        pytest.param(RedisServer, id="redis8", marks=pytest.mark.store("redis8")),
    ],
)
def servers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    yield from start_pair(request.param)


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.restore()
    return servers


def claim_keys(url: str, prefix: str, keys: int) -> list[str]:
    """Claim keys, and return those whose claim was acknowledged."""
    store = RedisStore.open(url)
    acknowledged = []
    for number in range(keys):
        try:
            assert store.execute(asked(f"{prefix}-{number}")).granted
            acknowledged.append(f"{prefix}-{number}")
        except StoreUnclear:
            pass
    store.close()
    return acknowledged


def find_missing(url: str, keys: list[str]) -> list[str]:
    store = RedisStore.open(url)
    gone = [key for key in keys if store.execute(lookup(asked(key), now=None)).record is None]
    store.close()
    return gone


QUIET = {"socket_timeout": "60"}
"""Without `wait` the primary answers by itself. A busy machine may take long."""

WORST = [
    pytest.param(QUIET, "0", "at-most-once-until-failover", 30, 30, id="as it comes"),
    pytest.param(QUIET, "1", "at-most-once-until-failover", 30, 30, id="min-replicas-to-write"),
    pytest.param({"wait": "1", "wait_timeout": "0.05"}, "0", "exactly-once-capable", 0, 0, id="wait"),
]


@pytest.mark.parametrize(("options", "min_replicas", "label", "told", "gone"), WORST)
def test_the_replica_hangs_and_then_the_primary_dies(
    pair: Pair, options: dict[str, str], min_replicas: str, label: str, told: int, gone: int
) -> None:
    """Everything that was acknowledged while the replica hung is lost, and the doctor says so. With `wait` nothing is
    acknowledged in that time."""
    prefix = unique() + ":"
    url = url_with(pair.primary.url, prefix, **options)
    with pair.primary.client() as client:
        client.config_set("min-replicas-to-write", min_replicas)
        client.config_set("min-replicas-max-lag", "600")
    assert diagnose(url).label == label
    before = claim_keys(url_with(pair.primary.url, prefix, **WAIT_OPTIONS), "before", 20)
    assert len(before) == 20
    pair.replica.pause()
    during = claim_keys(url, "during", 30)
    pair.primary.kill()
    pair.replica.kill()  # so that data on its way to the replica is lost too
    pair.replica.resume()
    pair.promote()
    pair.swap()
    now = url_with(pair.primary.url, prefix, **QUIET)
    assert find_missing(now, before) == []
    assert len(during) == told
    assert len(find_missing(now, during)) == gone


def test_a_replica_that_is_cut_off_is_not_waited_for_in_vain(pair: Pair) -> None:
    """The operation is unclear, but done on the primary, and recognised when it is sent again. The doctor says why."""
    prefix = unique() + ":"
    url = url_with(pair.primary.url, prefix, wait="1", wait_timeout="0.05")
    with pair.replica.client() as client:
        client.replicaof("127.0.0.1", free_port())
    until(lambda: count_replicas(pair.primary) == 0, TIMEOUT_SECONDS, "the replica to be gone")
    store, op = RedisStore.open(url), claim(now=None)
    with pytest.raises(StoreUnclear, match=r"0 replicas instead of 1 \(\?wait=\)"):
        store.execute(op)
    with pytest.raises(StoreUnclear):
        store.execute(op)  # it writes nothing this time, and is still unclear
    [finding] = [one for one in diagnose(url).findings if one.setting == "replicas"]
    assert not finding.fine
    assert "every operation ends as unclear" in finding.why
    pair.follow()
    again = eventually(lambda: store.execute(op), StoreUnclear)
    assert again.granted
    assert again.record is not None
    assert again.record.attempt == 1
    store.close()


def test_a_replay_is_not_given_before_the_replicas_have_it(pair: Pair) -> None:
    """Another store wrote the answer without waiting. WAIT alone covers only the writes of its own connection."""
    prefix = unique() + ":"
    quick = RedisStore.open(url_with(pair.primary.url, prefix, **QUIET))
    careful = RedisStore.open(url_with(pair.primary.url, prefix, wait="1", wait_timeout="0.05"))
    held = quick.execute(asked("k"))
    pair.replica.pause()
    try:
        assert quick.execute(complete(held, b"paid", now=None))
        with pytest.raises(StoreUnclear):
            careful.execute(asked("k"))
    finally:
        pair.replica.unpause()
    found = eventually(lambda: careful.execute(asked("k")), StoreUnclear).record
    assert found is not None
    assert found.answer is not None
    assert found.answer.body == b"paid"
    for store in (quick, careful):
        store.close()


async def test_replicas_are_waited_for_async(pair: Pair) -> None:
    prefix = unique() + ":"
    store = AsyncRedisStore.open(url_with(pair.primary.url, prefix, **WAIT_OPTIONS))
    assert not store.capabilities.native_batching  # WAIT blocks the commands behind it on its connection
    held = await store.execute(claim(now=None))
    assert await store.execute(complete(held, now=None))
    assert await store.migrate() == ["0001_layout"]
    assert (await store.execute(stats(now=None))).completed == 1
    await store.aclose()
    hasty = AsyncRedisStore.open(url_with(pair.primary.url, prefix, wait="2", wait_timeout="0.05"))
    with pytest.raises(StoreUnclear, match=r"[01] replicas instead of 2"):
        await hasty.execute(claim("other", now=None))
    await hasty.aclose()


def test_full_memory_lets_answers_in_while_replicas_are_waited_for(pair: Pair) -> None:
    prefix = unique() + ":"
    store = RedisStore.open(url_with(pair.primary.url, prefix, **WAIT_OPTIONS))
    held = store.execute(claim(now=None))
    with pair.primary.client() as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(StoreUnavailable, match="OOM") as caught:
                store.execute(claim("new", now=None))
            assert not isinstance(caught.value, StoreUnclear)
            assert eventually(lambda: store.execute(complete(held, b"paid", now=None)), StoreUnclear)
        finally:
            client.config_set("maxmemory", "0")
    store.close()
