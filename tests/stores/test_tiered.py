"""A cache in front of a store: it replays, and does nothing else. The whole contract passes behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from retrysafe.core.ops import Claim, Op
from retrysafe.core.states import State
from retrysafe.core.times import HOUR_MICROS, SECOND_MICROS
from retrysafe.errors import UsageError
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.stores.redis.cache import AsyncRedisCache, RedisCache
from retrysafe.stores.tiered import AsyncTiered, CachedRecord, MemoryCache, Tiered, compute_seconds_left
from retrysafe.testing import Do
from retrysafe.testing.builders import answer, claim, complete, forget
from retrysafe.testing.contract.claim import *  # noqa: F403
from retrysafe.testing.contract.expiry import *  # noqa: F403
from retrysafe.testing.contract.fence import *  # noqa: F403
from retrysafe.testing.contract.forget import *  # noqa: F403
from retrysafe.testing.contract.identity import *  # noqa: F403
from retrysafe.testing.contract.list_by_id import *  # noqa: F403
from retrysafe.testing.contract.listing import *  # noqa: F403
from retrysafe.testing.contract.many import *  # noqa: F403
from retrysafe.testing.contract.settle import *  # noqa: F403
from tests.opening import unique, with_option
from tests.servers.ports import free_port

PATIENT = 60.0
"""Seconds: on a busy machine a cache that takes its time is still one."""


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Iterator[Do]:
    store, cache = MemoryStore(), MemoryCache()
    opened = (
        Do.sync(Tiered(store, cache))
        if request.param == "sync"
        else Do.asynchronous(AsyncTiered(AsyncMemoryStore(store), cache))
    )
    yield opened
    opened.close()


class Counted(MemoryStore):
    """Counts the claims it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def execute(self, op: Op[Any]) -> Any:
        self.asked += isinstance(op, Claim)
        return super().execute(op)


def arrange_completed(do: Do, key: str = "k") -> Any:
    held = do(claim(key, now=None))
    assert do(complete(held, answer(b"the answer", status=201), now=None))
    return held


def test_a_replay_asks_the_store_once() -> None:
    store = Counted()
    do = Do.sync(Tiered(store, MemoryCache()))
    arrange_completed(do)
    replies = [do(claim("k", now=None)) for _ in range(5)]
    assert store.asked == 2, "the claim itself, and the first replay"
    assert {reply.granted for reply in replies} == {False}
    assert {reply.record.answer for reply in replies if reply.record} == {answer(b"the answer", status=201)}


def test_whoever_may_run_is_decided_by_the_store_each_time() -> None:
    store = Counted()
    do = Do.sync(Tiered(store, MemoryCache()))
    do(claim("k", now=None))
    for _ in range(3):
        assert not do(claim("k", now=None)).granted
    assert store.asked == 4, "an open record is never cached"


def test_i8_another_fingerprint_sees_that_it_is_another() -> None:
    do = Do.sync(Tiered(MemoryStore(), MemoryCache()))
    arrange_completed(do)
    do(claim("k", now=None))
    other = claim("k", body=b"something else", now=None)
    reply = do(other)
    assert reply.record is not None
    assert reply.record.fingerprint != other.fingerprint


def test_what_is_forgotten_is_gone_from_the_cache_too() -> None:
    do = Do.sync(Tiered(MemoryStore(), MemoryCache()))
    held = arrange_completed(do)
    do(claim("k", now=None))
    assert do(forget(held, now=None))
    reply = do(claim("k", now=None))
    assert reply.record is not None
    assert reply.record.answer is not None
    assert reply.record.answer.gone == "forgotten"


# How long, and how much ---------------------------------------------------------------------------


def a_record(key: str = "k", body: bytes = b"x", *, expires: int = 10 * SECOND_MICROS) -> CachedRecord:
    store = Do.sync(MemoryStore())
    held = store(claim(key, now=0))
    assert store(complete(held, body, now=0))
    return CachedRecord(store.record(held)._replace(expires=expires), 0)


def test_i12_it_is_kept_no_longer_than_the_record() -> None:
    assert compute_seconds_left(a_record(expires=5 * SECOND_MICROS), 60) == 5
    assert compute_seconds_left(a_record(expires=HOUR_MICROS), 60) == 60


def test_time_is_up() -> None:
    now = [0.0]
    cache = MemoryCache(clock=lambda: now[0])
    seen = a_record()
    cache.put(seen, 5)
    now[0] = 4.99
    assert cache.get(seen.record.id) == seen
    now[0] = 5.0
    assert cache.get(seen.record.id) is None


def test_the_one_not_used_for_longest_goes_first() -> None:
    cache = MemoryCache(entries=2)
    first, second, third = (a_record(key) for key in "abc")
    cache.put(first, 5)
    cache.put(second, 5)
    assert cache.get(first.record.id)
    cache.put(third, 5)
    assert [bool(cache.get(seen.record.id)) for seen in (first, second, third)] == [True, False, True]


def test_the_bytes_are_bounded() -> None:
    cache = MemoryCache(size=10)
    small, large, huge = a_record("a", b"x" * 6), a_record("b", b"x" * 6), a_record("c", b"x" * 11)
    for seen in (small, large, huge, large):
        cache.put(seen, 5)
    assert [bool(cache.get(seen.record.id)) for seen in (small, large, huge)] == [False, True, False]


@pytest.mark.parametrize("wrong", [{"entries": 0}, {"size": 0}, {"ttl": 0}])
def test_sizes_make_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="above zero"):
        MemoryCache(**wrong)


# Redis as the cache -------------------------------------------------------------------------------


@pytest.fixture
def prefix() -> str:
    return unique("tiered")


@pytest.fixture
def cache_url(redis_url: str, prefix: str) -> str:
    return with_option(redis_url, "prefix", f"{prefix}:")


def test_processes_share_what_one_has_read(cache_url: str, prefix: str) -> None:
    store = Counted()
    here, there = (Do.sync(Tiered(store, RedisCache(cache_url, timeout=PATIENT))) for _ in range(2))
    arrange_completed(here)
    assert [do(claim("k", now=None)).record for do in (here, there)]
    assert store.asked == 2, "the second process found what the first had read"
    left = redis.Redis.from_url(cache_url.partition("?")[0])
    [name] = list(left.keys(f"{prefix}:cache:*"))
    assert 0 < left.pttl(name) <= 60_000
    left.set(name, b"7 not json")
    assert not there(claim("k", now=None)).granted, "what cannot be read is not there"
    left.close()


async def test_the_same_on_an_event_loop(cache_url: str) -> None:
    store = Counted()
    cache = AsyncRedisCache(cache_url, timeout=PATIENT)
    tiered = AsyncTiered(AsyncMemoryStore(store), cache)
    held = await tiered.execute(claim("k", now=None))
    assert await tiered.execute(complete(held, b"done", now=None))
    for _ in range(3):
        reply = await tiered.execute(claim("k", now=None))
        assert reply.record is not None
        assert reply.record.state is State.COMPLETED
    assert store.asked == 2
    assert await tiered.execute(forget(held, now=None))
    assert await cache.get(held.record.id) is None
    await cache.aclose()


async def test_a_cache_that_is_down_is_no_cache() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    do = Do.sync(Tiered(MemoryStore(), RedisCache(url)))
    arrange_completed(do)
    assert not do(claim("k", now=None)).granted
    cache = AsyncRedisCache(url)
    seen = a_record()
    await cache.put(seen, 5)
    assert await cache.get(seen.record.id) is None
    await cache.drop(seen.record.id)
    await cache.aclose()


def test_a_ttl_must_make_sense() -> None:
    with pytest.raises(UsageError, match="seconds"):
        RedisCache("redis://127.0.0.1/0", ttl=0)
