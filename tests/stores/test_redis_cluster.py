"""A cluster of three real nodes, each with a replica: where keys are stored, slots that move, nodes that die.

tests/contract/ and tests/races/ test the state machine on a cluster. This file has a cluster of its own, because it
moves slots and kills nodes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable, StoreUnclear, StoreURLError
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.redis import AsyncRedisClusterStore, RedisClusterStore, RedisStore
from retrysafe.stores.redis.slots import Topology, slot_of
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete, listing, reap, record_of, stats
from tests.opening import unique, with_option
from tests.servers.base import ServerUnavailable
from tests.servers.valkey import FAST_DOWN_AFTER_MS, SLOW_DOWN_AFTER_MS, ValkeyCluster, ValkeyServer
from tests.stores.redis_load import Load, find_lost
from tests.waiting import until

pytestmark = [pytest.mark.store("redis_cluster"), pytest.mark.xdist_group("redis cluster"), pytest.mark.timeout(600)]

TIMEOUT_SECONDS = 120.0
BUCKETS = 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    own = ValkeyCluster(replicas=1)
    try:
        own.start()
    except ServerUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield own
    own.stop()


@pytest.fixture
def prefix() -> str:
    return unique() + ":"


@pytest.fixture
def url(cluster: ValkeyCluster, prefix: str) -> str:
    return with_option(cluster.url, "prefix", prefix)


@pytest.fixture
def store(url: str) -> Iterator[RedisClusterStore]:
    opened = RedisClusterStore.open(url)
    yield opened
    opened.close()


def observer(cluster: ValkeyCluster) -> RedisCluster:
    """redis-py's own client, to inspect the data without the store."""
    return RedisCluster(host="127.0.0.1", port=living(cluster)[0].port)


def living(cluster: ValkeyCluster) -> list[ValkeyServer]:
    return [node for node in cluster.nodes if node.process is not None]


# Where keys live ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [b"plain", b"a{tag}b", b"{}whole", b"a{}b", b"{one}{two}", b"open{tag", b"t:{15}:x"])
def test_slots_are_reckoned_as_the_server_does(cluster: ValkeyCluster, key: bytes) -> None:
    with cluster.primaries[0].client() as client:
        assert slot_of(key) == client.execute_command("CLUSTER", "KEYSLOT", key)


def test_a_bucket_is_in_one_slot_and_buckets_are_on_every_node(
    cluster: ValkeyCluster, store: RedisClusterStore, prefix: str
) -> None:
    assert store.migrate() == ["0001_layout"]
    assert store.migrate() == []
    replies = store.execute_many([claim(f"k{n}") for n in range(200)])
    assert all(reply.granted for reply in replies)
    with observer(cluster) as client:
        keys = list(client.scan_iter(match=f"{prefix}*", target_nodes=RedisCluster.PRIMARIES))
        tags = {key[: key.index(b"}")] for key in keys if b"}" in key}
        owners = {client.get_node_from_key(tag.decode() + "}").port for tag in tags}
    assert len(tags) == BUCKETS
    assert len(keys) == 200 + 2 * BUCKETS + 1, "the records, two indexes in each bucket, and the layout's meta key"
    assert len(owners) == 3


def test_what_goes_over_all_buckets_finds_everything(store: RedisClusterStore) -> None:
    held = store.execute_many([claim(f"k{n}", retention=1, now=0) for n in range(100)])
    assert store.execute_many([complete(each, b"x", now=1) for each in held[:50]]) == [True] * 50
    counts = store.execute(stats(now=2))
    assert (counts.claimed, counts.completed) == (50, 50)
    found, page = [], store.execute(listing(now=2))
    found.extend(page.records)
    while page.cursor:
        page = store.execute(listing(now=2, cursor=page.cursor))
        found.extend(page.records)
    assert {each.id for each in found} == {record_of(each).id for each in held}
    assert store.execute(reap(limit=20, now=10_000)) == 20
    assert store.execute(reap(limit=1000, now=10_000)) == 30
    assert store.execute(stats(now=10_000)).claimed == 50


async def test_calls_of_one_turn_go_to_all_nodes(url: str) -> None:
    store = AsyncRedisClusterStore.open(url)
    assert store.capabilities.native_batching
    replies = await asyncio.gather(*(store.execute(claim(f"k{n}")) for n in range(100)))
    assert all(reply.granted for reply in replies)
    assert await asyncio.gather(*(store.execute(complete(each)) for each in replies)) == [True] * 100
    assert (await store.execute(stats())).completed == 100
    await store.aclose()


def test_scripts_are_loaded_again_on_every_node_that_forgot_them(
    cluster: ValkeyCluster, store: RedisClusterStore
) -> None:
    for _ in range(2):
        for node in cluster.nodes:
            with node.client() as client:
                client.script_flush()
        assert all(reply.granted for reply in store.execute_many([claim(unique()) for _ in range(60)]))


def test_who_waits_is_woken_over_another_node(cluster: ValkeyCluster, url: str) -> None:
    """The two stores try the nodes in a different order."""
    first = RedisClusterStore.open(url)
    nodes = ",".join(f"127.0.0.1:{node.port}" for node in reversed(cluster.primaries))
    second = RedisClusterStore.open(f"redis+cluster://{nodes}?{url.partition('?')[2]}")
    waiting = threading.Thread(target=first.wait, args=(b"x" * 32, 600.0), daemon=True)
    waiting.start()
    try:
        assert first._listener.up.wait(TIMEOUT_SECONDS)

        def announce_and_check() -> bool:
            second.announce(b"x" * 32)
            return not waiting.is_alive()

        until(announce_and_check, TIMEOUT_SECONDS, "the waiting thread to be woken")
    finally:
        first.close()
        second.close()


# What is wrong ------------------------------------------------------------------------------------


def test_a_server_that_is_no_cluster_is_named(redis_url: str) -> None:
    place = redis_url.partition("://")[2].partition("/")[0]
    store = open_store(f"redis+cluster://{place}")
    with pytest.raises(StoreUnavailable, match=r"is no cluster.*redis://"):
        store.execute(claim())
    store.close()


def test_a_node_of_a_cluster_says_how_to_open_it(cluster: ValkeyCluster) -> None:
    store = RedisStore.open(with_option(cluster.primaries[0].url, "buckets", "16"))
    with pytest.raises(StoreUnavailable, match=r"MOVED.*redis\+cluster://"):
        store.execute_many([claim(f"k{n}") for n in range(60)])
    store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://h:1/3", "one database"),
        ("redis+cluster://h:1,:2", "no host"),
        ("redis+cluster://h:1,h:port", "list of host:port"),
        ("redis+sentinel://h:1/0", "master=name"),
        ("redis://h:1/0?wait=-1", "wait=-1"),
        ("redis://h:1/0?wait=1&wait_timeout=9", "socket_timeout"),
        ("redis://h:1/0?wait=many", "numbers"),
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str, said: str) -> None:
    with pytest.raises(StoreURLError, match=said):
        open_store(url).execute(claim())


def test_no_node_that_answers(cluster: ValkeyCluster) -> None:
    with pytest.raises(StoreUnavailable, match="returned its slots") as caught:
        open_store("redis+cluster://127.0.0.1:1,127.0.0.1:2").execute(claim())
    assert not isinstance(caught.value, StoreUnclear)


# Slots that move ----------------------------------------------------------------------------------


def owner(cluster: ValkeyCluster, slot: int) -> ValkeyServer:
    """The node that owns the slot. Waits until all nodes agree on it."""
    agreed: set[int] = set()

    def agree() -> bool:
        nonlocal agreed
        agreed = owners(cluster, slot)
        return len(agreed) == 1

    until(agree, TIMEOUT_SECONDS, "the nodes to agree")
    [port] = agreed
    return next(node for node in cluster.nodes if node.port == port)


def owners(cluster: ValkeyCluster, slot: int) -> set[int]:
    """The ports of the slot's owners, as each node sees them."""
    found = set()
    for node in living(cluster):
        with node.client() as client:
            client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
            view = Topology([])
            view.learn(client.execute_command("CLUSTER SLOTS"), ("127.0.0.1", node.port))
            address = view.owner_of(slot)
            found.add(address[1] if address else 0)
    return found


def primaries(cluster: ValkeyCluster) -> list[ValkeyServer]:
    return [node for node in living(cluster) if role(node) == "master"]


def role(node: ValkeyServer) -> str:
    with node.client() as client:
        return str(client.info("replication")["role"])


def count_redirects(node: ValkeyServer) -> int:
    """How often a node has answered ASK, MOVED or TRYAGAIN."""
    with node.client() as client:
        info = client.info("errorstats")
    return sum(
        info[f"errorstat_{code}"]["count"] for code in ("ASK", "TRYAGAIN", "MOVED") if f"errorstat_{code}" in info
    )


REPLICA_TIMEOUT = ("TIMEOUT", 100_000)
"""How long (milliseconds) a node waits until its replica knows of a slot's move too. The default is two seconds."""


@contextmanager
def moving_slot(cluster: ValkeyCluster, slot: int) -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    """Begin to move a slot, yield its source and its target, and end the move."""
    source = owner(cluster, slot)
    target = next(node for node in primaries(cluster) if node is not source)
    with source.client() as giving, target.client() as taking:
        taking.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source), *REPLICA_TIMEOUT)
        giving.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target), *REPLICA_TIMEOUT)
        yield source, target
        for node in (taking, giving):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target), *REPLICA_TIMEOUT)


def migrate_keys(source: ValkeyServer, target: ValkeyServer, slot: int, at_most: int) -> int:
    with source.client() as giving:
        keys = giving.execute_command("CLUSTER", "GETKEYSINSLOT", slot, at_most)
        if keys:
            giving.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)
    return len(keys)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_slots_move_key_by_key_under_load(cluster: ValkeyCluster, url: str, prefix: str, colour: str) -> None:
    """Every resharding tool moves keys like this. Halfway, records and their indexes are on different nodes."""
    slots = [slot_of(f"{prefix}{{{bucket}}}:".encode()) for bucket in (0, 7)]
    load = Load(url, colour)
    try:
        load.wait_for_more()
        for slot in slots:
            with moving_slot(cluster, slot) as (source, target):
                with target.client() as client:
                    client.script_flush()  # so that commands that arrive there miss their script
                before = count_redirects(source) + count_redirects(target)
                migrate_keys(source, target, slot, 3)
                until(
                    lambda before=before, nodes=(source, target): sum(map(count_redirects, nodes)) > before,
                    TIMEOUT_SECONDS,
                    "a command to be redirected",
                )
                while migrate_keys(source, target, slot, 100):
                    pass
            load.wait_for_more()
    finally:
        acknowledged = load.stop()
    check = open_store(url)
    assert find_lost(check, acknowledged) == []
    assert check.execute(stats(now=None)).completed == load.completed
    check.close()


def is_moved(cluster: ValkeyCluster, slot: int, source: ValkeyServer, target: ValkeyServer) -> bool:
    """Ask for the move, and return True once it has happened. The nodes give up a move that takes some seconds, so this
    is called again."""
    with source.client() as client, suppress(ResponseError):  # the move is running, or done
        client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.id_of(target))
    return owner(cluster, slot) is target


def test_a_slot_moves_at_once_under_load(cluster: ValkeyCluster, url: str, prefix: str) -> None:
    """Valkey 9 moves a whole slot by itself (CLUSTER MIGRATESLOTS)."""
    slot = slot_of(f"{prefix}{{3}}:".encode())
    source = owner(cluster, slot)
    target = next(node for node in primaries(cluster) if node is not source)
    load = Load(url, "async")
    try:
        load.wait_for_more()
        until(lambda: is_moved(cluster, slot, source, target), TIMEOUT_SECONDS, "the slot to arrive")
        load.wait_for_more()
    finally:
        acknowledged = load.stop()
    check = open_store(url)
    assert find_lost(check, acknowledged) == []
    assert check.execute(stats(now=None)).completed == load.completed
    check.close()


# Nodes that die -----------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_primary_is_killed_and_its_replica_takes_over(cluster: ValkeyCluster, url: str, colour: str) -> None:
    """With `wait=1` nothing that was acknowledged is lost."""
    waiting = with_option(with_option(url, "wait", "1"), "wait_timeout", "4")
    assert diagnose(waiting).label == "exactly-once-capable"
    assert diagnose(url).label == "at-most-once-until-failover"
    load = Load(waiting, colour)
    try:
        load.wait_for_more()
        victim = primaries(cluster)[0]
        before = len(primaries(cluster))
        cluster.set_down_after(FAST_DOWN_AFTER_MS)
        victim.kill()
        until(lambda: len(primaries(cluster)) == before, TIMEOUT_SECONDS, "a replica to be promoted")
        victim.resume()  # until then the promoted node has no replica and acknowledges nothing
        until(lambda: role(victim) == "slave" and is_linked(victim), TIMEOUT_SECONDS, "it to come back as a replica")
        cluster.set_down_after(SLOW_DOWN_AFTER_MS)
        load.wait_for_more()
    finally:
        acknowledged = load.stop()
    assert load.errors, "the kill had no effect"
    check = open_store(url)
    assert find_lost(check, acknowledged) == []
    check.close()


def is_linked(node: ValkeyServer) -> bool:
    with node.client() as client:
        return str(client.info("replication").get("master_link_status")) == "up"


def test_without_its_replicas_nothing_is_acknowledged(cluster: ValkeyCluster, url: str) -> None:
    """`wait=2`, but each primary has one replica: the operation is done, unclear, and recognised when it is sent
    again."""
    store = RedisClusterStore.open(with_option(with_option(url, "wait", "2"), "wait_timeout", "0.05"))
    op = claim(now=None)
    with pytest.raises(StoreUnclear, match=r"[01] replicas instead of 2 \(\?wait=\)"):
        store.execute(op)
    store.close()
    check = open_store(url)
    again = check.execute(op)
    assert again.granted
    assert (record_of(again).state, record_of(again).attempt) == (State.CLAIMED, 1)
    check.close()
