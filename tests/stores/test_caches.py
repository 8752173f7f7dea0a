"""`RetrySafe(url, cache=…)`: which caches there are, what they replay, and what is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Forget, List
from retrysafe.errors import AnswerGone, StoreURLError, UsageError
from retrysafe.stores.caches import CacheSetting, parse_cache_url
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.tiered import MemoryCache
from tests.opening import unique, with_option


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.store("redis"))])
def cache_url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://?ttl=600"
    return with_option(with_option(request.getfixturevalue("redis_url"), "prefix", f"{unique()}:"), "ttl", "600")


def guard_send(safe: RetrySafe, sent: list[int]) -> Callable[[int], str]:
    @safe.once("receipt:{order}")
    def send(order: int) -> str:
        sent.append(order)
        return f"sent for {order}"

    return send


def forget_behind_the_cache(url: str) -> None:
    """As another process does it: the cache is not told."""
    with RetrySafe(url) as other:
        (record,) = other.execute(List()).records
        assert other.execute(Forget(record.id, record.fence))


def test_a_replay_needs_no_store(tmp_path: Path, cache_url: str) -> None:
    url, sent = f"sqlite:///{tmp_path}/app.db", list[int]()
    with RetrySafe(url, cache=cache_url) as safe:
        safe.migrate()
        assert safe.store.capabilities.caches
        send = guard_send(safe, sent)
        send(7), send(7)  # the second call meets a completed record: it is cached now
        forget_behind_the_cache(url)
        assert send(7) == "sent for 7"
    assert sent == [7]


def test_the_async_side_has_the_cache_too(tmp_path: Path, cache_url: str) -> None:
    url, sent = f"sqlite:///{tmp_path}/app.db", list[int]()

    async def main() -> str:
        async with RetrySafe(url, cache=cache_url) as safe:
            safe.migrate()

            @safe.once("receipt:{order}")
            async def send(order: int) -> str:
                sent.append(order)
                return f"sent for {order}"

            await send(7), await send(7)
            await asyncio.to_thread(forget_behind_the_cache, url)
            return await send(7)

    assert asyncio.run(main()) == "sent for 7"
    assert sent == [7]


def test_forgetting_here_is_noticed_on_both_sides(tmp_path: Path) -> None:
    """One cache in memory for the whole process: what the sync side forgets, the async side does not replay."""
    sent = list[int]()

    async def main() -> None:
        async with RetrySafe(f"sqlite:///{tmp_path}/app.db", cache=MemoryCache()) as safe:
            safe.migrate()

            @safe.once("receipt:{order}")
            async def send(order: int) -> None:
                sent.append(order)

            await send(7), await send(7)
            (record,) = safe.execute(List()).records
            assert safe.execute(Forget(record.id, record.fence))
            with pytest.raises(AnswerGone):
                await send(7)

    asyncio.run(main())
    assert sent == [7]


def test_a_forked_process_has_its_own_memory_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of the parent may have held the lock of the parent's cache."""
    setting, parent = CacheSetting("memory://?ttl=7&entries=3"), os.getpid()
    inherited = setting._memory_cache()
    assert setting._memory_cache() is inherited
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    own = setting._memory_cache()
    assert own is not None
    assert own is not inherited
    assert own.ttl == 7
    assert setting._memory_cache() is own


def test_options_are_read_and_the_rest_is_for_redis() -> None:
    assert parse_cache_url("memory://?ttl=5&entries=10&size=100") == (
        "memory://",
        {"ttl": 5.0, "entries": 10, "size": 100},
    )
    assert parse_cache_url("redis://:s%20x@host:1/2?ttl=5&prefix=a%3A") == (
        "redis://:s%20x@host:1/2?prefix=a%3A",
        {"ttl": 5.0},
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("postgresql://host/db", "a cache is memory://"),
        ("memory", "a cache is memory://"),
        ("memory://shared", "a cache is memory://"),
        ("memory://?tll=5", "no option 'tll'; it has ttl, entries and size"),
        ("memory://?ttl=long", "ttl='long' is not a number"),
        ("memory://?ttl=0", "above zero"),
        ("redis://host?ttl=0", "more than zero"),
        ("redis+cluster://host", "a cache is memory://"),
        (60, "cache=60: give a URL"),
    ],
)
def test_what_is_no_cache_is_refused_at_once(given: str, words: str) -> None:
    with pytest.raises((StoreURLError, UsageError), match=words):
        RetrySafe("memory://", cache=given)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(StoreURLError) as caught:
        RetrySafe("memory://", cache="mysql://root:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


def test_stores_of_your_own_take_no_cache() -> None:
    with pytest.raises(UsageError, match=r"Tiered\(store, cache\)"):
        RetrySafe(MemoryStore(), cache="memory://")
