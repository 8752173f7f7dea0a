"""The pipe: one connection, commands as they come, replies in their order, whatever breaks in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.redis import AsyncRedisStore, pipe
from retrysafe.testing.builders import claim, complete, lookup, record_of
from tests.opening import unique, with_option

pytestmark = pytest.mark.store("redis")


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[AsyncRedisStore]:
    opened = AsyncRedisStore.open(with_option(redis_url, "prefix", unique() + ":"))
    yield opened
    await opened.aclose()


def piped(store: AsyncRedisStore) -> pipe.Pipe:
    assert store._pipe is not None, "the tests have hiredis"
    return store._pipe


def writes(store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each write to the socket had."""
    writer, sizes = piped(store)._writer, []
    assert writer is not None
    real = writer.write
    monkeypatch.setattr(writer, "write", lambda data: (sizes.append(len(data)), real(data)))
    return sizes


async def test_what_is_asked_in_one_turn_goes_out_together(
    store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.execute(claim("first", now=0))
    sizes = writes(store, monkeypatch)
    replies = await asyncio.gather(*(store.execute(claim(f"k{number}", now=0)) for number in range(50)))
    assert [record_of(reply).key for reply in replies] == [f"k{number}" for number in range(50)]
    assert len(sizes) == 2, "the first at once, the others in one write"


async def test_a_cancelled_caller_leaves_the_connection_and_the_others_alone(store: AsyncRedisStore) -> None:
    await store.execute(claim("warm", now=0))
    connection = piped(store)._connection
    tasks = [asyncio.ensure_future(store.execute(claim(f"k{number}", now=0))) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    for number, reply in enumerate(replies):
        if number % 3:
            assert record_of(reply).key == f"k{number}"  # type: ignore[arg-type]
        else:
            assert isinstance(reply, asyncio.CancelledError)
    assert (await store.execute(lookup("k1", now=0))).record is not None
    assert piped(store)._connection is connection


async def test_a_broken_connection_is_unclear_for_what_was_sent_and_replaced_for_the_next(
    store: AsyncRedisStore,
) -> None:
    held = await store.execute(claim("k", now=0))
    task = asyncio.ensure_future(store.execute(complete(held, b"x", now=1)))
    await asyncio.sleep(0)
    piped(store)._connection._writer.transport.abort()
    with pytest.raises(StoreUnclear):
        await task
    assert await store.execute(complete(held, b"x", now=1))


async def test_a_connection_closed_while_idle_is_noticed_before_it_is_used(store: AsyncRedisStore) -> None:
    await store.execute(claim("a", now=0))
    first = piped(store)._connection
    first._writer.transport.abort()
    while piped(store)._connection is first:
        await asyncio.sleep(0)
    assert (await store.execute(claim("b", now=0))).granted


async def test_the_number_of_those_who_wait_is_bounded(store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.execute(claim("warm", now=0))
    monkeypatch.setattr(pipe, "LIMIT", 5)
    tasks = [asyncio.ensure_future(store.execute(claim(f"k{number}", now=0))) for number in range(9)]
    replies: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [reply for reply in replies if isinstance(reply, StoreUnavailable)]
    assert len(refused) == 4
    assert "too slow for the load" in str(refused[0])


async def test_a_closed_store_says_so(store: AsyncRedisStore) -> None:
    await store.execute(claim("k", now=0))
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="was closed"):
        await store.execute(claim("k", now=0))


async def test_without_hiredis_it_goes_the_drivers_way(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.stores.redis.aio.possible", lambda pool: False)
    store = AsyncRedisStore.open(with_option(redis_url, "prefix", unique() + ":"))
    assert not store.batches_itself
    replies = await asyncio.gather(*(store.execute(claim(f"k{number}", now=0)) for number in range(20)))
    assert all(reply.granted for reply in replies)
    await store.aclose()
