"""A Redis server that is full, demoted, without replicas, restricted by ACL or killed.

This file has a server of its own, because each test reconfigures it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.redis import AsyncRedisStore, RedisStore
from retrysafe.testing.builders import (
    claim,
    complete,
    forget,
    listing,
    lookup,
    renew,
    stats,
)
from tests.opening import patient, unique, with_option
from tests.servers.base import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.store("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    own = ValkeyServer()
    try:
        own.start()
    except ServerUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield own
    own.stop()


@pytest.fixture
def server_client(server: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[RedisStore]:
    opened = RedisStore.open(with_option(patient("redis", server.url), "prefix", unique() + ":"))
    yield opened
    opened.close()


@contextmanager
def configured(client: redis.Redis, name: str, value: str) -> Iterator[None]:
    before = client.config_get(name)[name]
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)


def test_a_refused_claim_and_a_replay_write_nothing(store: RedisStore, server_client: redis.Redis) -> None:
    """Nothing goes to the log or to replicas: the replication offset and the dirty counter do not change."""

    def written() -> tuple[int, int]:
        info = server_client.info()
        return info["master_repl_offset"], info["rdb_changes_since_last_save"]

    held = store.execute(claim(now=None))
    before = written()
    assert not store.execute(claim(now=None)).granted
    assert not store.execute(claim(body=b"other", now=None)).granted
    assert written() == before
    store.execute(complete(held, now=None))
    before = written()
    assert store.execute(claim(now=None)).record.state is State.COMPLETED
    store.execute_many([lookup(held, now=None), listing(now=None), stats(now=None)])
    assert store.execute(complete(held, now=None))
    assert written() == before


def test_full_memory_turns_new_work_away_and_lets_answers_in(store: RedisStore, server_client: redis.Redis) -> None:
    running, waiting = store.execute_many([claim("running", now=None), claim("waiting", now=None)])
    done = store.execute(claim("done", now=None))
    store.execute(complete(done, now=None))
    with configured(server_client, "maxmemory", "1"):
        with pytest.raises(StoreUnavailable, match=r"OOM.*maxmemory") as caught:
            store.execute(claim("new", now=None))
        assert not isinstance(caught.value, StoreUnclear)
        assert store.execute(renew(waiting, now=None))
        assert store.execute(complete(running, b"paid", now=None))
        assert store.execute(claim("running", now=None)).record.answer.body == b"paid"
        assert store.execute(forget(done, now=None))
    assert store.execute(lookup("new", now=None)).record is None
    assert store.execute(stats(now=None)).claimed == 1


async def test_full_memory_refuses_only_the_new_work_of_a_turn(
    server: ValkeyServer, server_client: redis.Redis
) -> None:
    """One script run has all claims of a turn. Still, a claim is not refused because another one creates a record."""
    store = AsyncRedisStore.open(with_option(patient("redis", server.url), "prefix", unique() + ":"))
    done, running = [await store.execute(claim(key, now=None)) for key in ("done", "running")]
    await store.execute(complete(done, b"paid", now=None))
    with configured(server_client, "maxmemory", "1"):
        ops = [lookup("x", now=None), *(claim(key, now=None) for key in ("new", "done", "running", "newer"))]
        ops.append(complete(running, b"late", now=None))
        _, new, replayed, busy, newer, settled = await asyncio.gather(
            *(store.execute(op) for op in ops), return_exceptions=True
        )
    assert [type(error) for error in (new, newer)] == [StoreUnavailable] * 2
    assert replayed.record.answer.body == b"paid"
    assert not busy.granted
    assert settled is True
    await store.aclose()


def test_a_server_without_its_replicas_says_so(store: RedisStore, server_client: redis.Redis) -> None:
    held = store.execute(claim(now=None))
    with configured(server_client, "min-replicas-to-write", "1"):
        for op in (claim("new", now=None), claim(now=None), complete(held, now=None)):
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                store.execute(op)


def test_a_replica_neither_grants_nor_refuses_nor_replays(store: RedisStore, server_client: redis.Redis) -> None:
    """A replica's data may be old, so even a refusal must come from the primary."""
    held, done = store.execute_many([claim("held", now=None), claim("done", now=None)])
    store.execute(complete(done, now=None))
    stale = claim("held", token=b"x" * 16, now=None)
    server_client.replicaof("127.0.0.1", free_port())
    try:
        for op in (claim("new", now=None), stale, claim("done", now=None), renew(held, now=None), complete(done)):
            with pytest.raises(StoreUnavailable, match=r"READONLY.*primary") as caught:
                store.execute(op)
            assert not isinstance(caught.value, StoreUnclear)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            store.execute_many([stale, claim("done", now=None)])
    finally:
        server_client.replicaof("NO", "ONE")
    assert store.execute(renew(held, now=None))


def test_a_replica_does_not_recognise_a_claim_as_ours(store: RedisStore, server_client: redis.Redis) -> None:
    """A repeated claim finds its own token on the replica, but another server may have been promoted since."""
    own = claim("held", now=None)
    assert store.execute(own).granted
    server_client.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(StoreUnavailable, match=r"READONLY.*primary"):
            store.execute(own)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            store.execute_many([own])
    finally:
        server_client.replicaof("NO", "ONE")
    assert store.execute(own).granted


def test_a_user_with_too_few_rights_is_told(server: ValkeyServer, server_client: redis.Redis) -> None:
    server_client.acl_setuser(
        "clerk", enabled=True, nopass=True, keys=["clerk:*"], categories=["+@all"], commands=["-zadd"]
    )
    store = RedisStore.open(f"redis://clerk:x@127.0.0.1:{server.port}/0?prefix=ours:")
    with pytest.raises(StoreUnavailable, match=r"NOPERM.*ACL SETUSER"):
        store.execute(claim(now=None))
    store.close()


def test_the_rights_we_ask_for_are_enough(server: ValkeyServer, server_client: redis.Redis) -> None:
    """The rights are those that the message for NOPERM names."""
    rights = "~retrysafe:* +@read +@write +@scripting +time"
    server_client.execute_command("ACL", "SETUSER", "app", "on", "nopass", *rights.split())
    store = RedisStore.open(f"redis://app:x@127.0.0.1:{server.port}/0")
    assert store.migrate() == ["0001_layout"]
    held = store.execute(claim(now=None))
    assert store.execute(complete(held, now=None))
    store.execute_many([lookup(held, now=None), listing(now=None), stats(now=None)])
    store.close()


def test_a_killed_server_comes_back_with_everything_acknowledged(server: ValkeyServer, store: RedisStore) -> None:
    held = store.execute(claim("held", now=None))
    done = store.execute(claim("done", now=None))
    assert store.execute(complete(done, b"paid", now=None))
    server.kill()
    with pytest.raises(StoreUnavailable):
        store.execute(lookup(held, now=None))
    server.resume()
    assert store.execute(lookup(held, now=None)).record == held.record
    assert store.execute(claim("done", now=None)).record.answer.body == b"paid"
