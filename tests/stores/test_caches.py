"""`RetrySafe(url, cache=…)`: which caches there are, what they replay, and what is refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from traceback import format_exception

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Forget, List
from retrysafe.errors import AnswerGone, StoreOutage, StoreURLError, UsageError
from retrysafe.stores.caches import CacheSetting, name_place, parse_cache_url
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
        ("memory://?ttl=nan", "above zero"),
        ("redis://host?ttl=nan", "more than zero"),
        ("redis://host:70000", "Port out of range"),
        ("redis://host?no_such_option=1", "no_such_option"),
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


@pytest.mark.parametrize("url", ["redis://root:hunter2?x@host/0", "redis://root:x/hunter2@host/0"])
def test_no_piece_of_a_password_is_repeated(url: str) -> None:
    """A parser takes a piece of such a password for a port or a database, and quotes it."""
    with pytest.raises(StoreURLError) as caught:
        RetrySafe("memory://", cache=url)
    assert "hunter2" not in "".join(format_exception(caught.value))


def test_a_scheme_may_be_in_capitals() -> None:
    assert parse_cache_url("MEMORY://?ttl=5") == ("memory://", {"ttl": 5.0})
    RetrySafe("memory://", cache="Memory://").close()


def test_two_stores_behind_one_cache_do_not_share_answers(tmp_path: Path, cache_url: str) -> None:
    """Two applications with a database each, one Redis and the namespace `default` handle the same event."""
    sent: dict[str, list[int]] = {"orders": [], "mail": []}
    for name in sent:
        with RetrySafe(f"sqlite:///{tmp_path}/{name}.db", cache=cache_url) as safe:
            safe.migrate()
            send = guard_send(safe, sent[name])
            send(7), send(7)  # the second call caches its record
    assert sent == {"orders": [7], "mail": [7]}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_two_stores_with_the_same_url_do_not_share_answers(
    tmp_path: Path, cache_url: str, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines with a file each of the same relative path; a `localhost` of their own is the same case."""
    sent: dict[str, list[int]] = {"orders": [], "mail": []}
    for name in sent:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        send_thrice = asend_thrice if colour == "async" else send_in_thread
        asyncio.run(send_thrice("sqlite:///app.db", cache_url, sent[name]))
    assert sent == {"orders": [7], "mail": [7]}


@pytest.mark.store("redis")
def test_no_entry_is_read_before_the_store_is_known(tmp_path: Path, redis_url: str) -> None:
    """A process that starts while its store is down does not know which installation it belongs to."""
    cache_url, sent = with_option(redis_url, "prefix", f"{unique()}:"), list[int]()
    file = tmp_path / "app.db"
    with RetrySafe(f"sqlite:///{file}", cache=cache_url) as safe:
        send = guard_send(safe, sent)
        send(7), send(7)  # it is cached now
    file.unlink()
    file.mkdir()
    with RetrySafe(f"sqlite:///{file}", cache=cache_url) as safe, pytest.raises(StoreOutage):
        guard_send(safe, sent)(7)
    assert sent == [7]


async def send_in_thread(url: str, cache_url: str, sent: list[int]) -> None:
    with RetrySafe(url, cache=cache_url) as safe:
        send = guard_send(safe, sent)
        assert [send(7) for _ in range(3)] == ["sent for 7"] * 3


async def asend_thrice(url: str, cache_url: str, sent: list[int]) -> None:
    async with RetrySafe(url, cache=cache_url) as safe:

        @safe.once("receipt:{order}")
        async def send(order: int) -> str:
            sent.append(order)
            return f"sent for {order}"

        assert [await send(7) for _ in range(3)] == ["sent for 7"] * 3


def test_one_cache_in_memory_is_for_one_store(tmp_path: Path) -> None:
    cache, url = MemoryCache(), f"sqlite:///{tmp_path}/app.db"
    RetrySafe(url, cache=cache).close()
    RetrySafe(url, cache=cache).close()
    with pytest.raises(UsageError, match="make one for each store"):
        RetrySafe(f"sqlite:///{tmp_path}/other.db", cache=cache)


def test_the_place_of_a_store_outlives_its_password() -> None:
    assert name_place("postgresql://app:old@db/shop") == name_place("postgresql://app:new@db/shop")
    assert name_place("postgresql://app:old@db/shop") != name_place("postgresql://app:old@db/mail")


def test_stores_of_your_own_take_no_cache() -> None:
    with pytest.raises(UsageError, match=r"Tiered\(store, cache\)"):
        RetrySafe(MemoryStore(), cache="memory://")
