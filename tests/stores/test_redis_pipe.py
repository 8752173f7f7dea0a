"""The pipe (pipe.py): one shared connection, with replies in order, also when something breaks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from retrysafe.core.ops import Complete
from retrysafe.core.records import Answer, Fence
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import CorruptRecord, StoreUnavailable, StoreUnclear
from retrysafe.stores.redis import AsyncRedisStore, pipe
from retrysafe.testing.builders import claim, complete, lookup, record_of, release, stats, suspect
from tests.opening import patient, unique, with_option

pytestmark = pytest.mark.store("redis")

ANSWER = Answer(200, b"x")


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[AsyncRedisStore]:
    opened = AsyncRedisStore.open(with_option(patient("redis", redis_url), "prefix", unique() + ":"))
    yield opened
    await opened.aclose()


def pipe_of(store: AsyncRedisStore) -> pipe.Pipe:
    assert store._pipe is not None, "the tests have hiredis"
    return store._pipe


def protocol_of(store: AsyncRedisStore) -> pipe.RespProtocol:
    found = pipe_of(store)._protocol
    assert found is not None, "it has not connected yet"
    return found


def record_writes(store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each write to the socket, in bytes."""
    sizes: list[int] = []
    real = protocol_of(store).transport.write
    counting = SimpleNamespace(write=lambda data: (sizes.append(len(data)), real(data)))
    monkeypatch.setattr(protocol_of(store), "transport", counting)
    return sizes


async def test_what_is_asked_in_one_turn_goes_out_together(
    store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.execute(claim("first", now=0))
    sizes = record_writes(store, monkeypatch)
    replies = await asyncio.gather(*(store.execute(claim(f"k{number}", now=0)) for number in range(pipe.MIN_WRITE_OPS)))
    assert [record_of(reply).key for reply in replies] == [f"k{number}" for number in range(pipe.MIN_WRITE_OPS)]
    assert len(sizes) == 2, "the first at once, the others in one write"


async def test_among_many_a_part_goes_out_before_the_turn_ends(
    store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise server and client would idle in turns."""
    await store.execute(claim("first", now=0))
    sizes = record_writes(store, monkeypatch)
    keys = [f"k{number}" for number in range(8 * pipe.MIN_WRITE_OPS)]
    calls = [asyncio.ensure_future(store.execute(claim(key, now=0))) for key in keys]
    asyncio.get_running_loop().call_soon(
        lambda: sizes.append(0)
    )  # marks the end of the turn in which all calls are made
    replies = await asyncio.gather(*calls)
    assert [record_of(reply).key for reply in replies] == keys
    first, *parts = sizes[: sizes.index(0)]
    assert len(parts) >= pipe.WRITES_PER_TURN, "the first at once, then parts"
    assert all(size > pipe.MIN_WRITE_OPS // 2 * first for size in parts), f"none of them small: {first}, then {parts}"


async def test_one_run_serves_each_kind_of_claim_and_two_of_one_key(store: AsyncRedisStore) -> None:
    """New records, replays, takeovers, expired records and refusals in one turn: each is judged as if it were alone."""
    held = {key: await store.execute(claim(key, lease=9, now=0)) for key in ("busy", "done", "old", "released")}
    await store.execute(claim("lapsed", lease=1, on_lapse="rerun", now=0))
    await asyncio.gather(
        store.execute(complete(held["done"], b"answer", now=1)),
        store.execute(complete(held["old"], b"old", now=1)),
        store.execute(release(held["released"], now=1)),
    )
    await store.execute(claim("old", now=0))
    keys = ("new", "busy", "done", "lapsed", "released", "twice", "twice", "lapsed")
    replies = await asyncio.gather(*(store.execute(claim(key, now=5)) for key in keys))
    assert [(reply.granted, record_of(reply).attempt) for reply in replies] == [
        *((True, 1), (False, 1), (False, 1), (True, 2), (True, 2), (True, 1), (False, 1), (False, 2))
    ]
    assert [record_of(reply).key for reply in replies] == list(keys)
    reborn = await asyncio.gather(*(store.execute(claim(key, now=9 * 86400)) for key in ("old", "done", "new2")))
    assert all(reply.granted and record_of(reply).attempt == 1 for reply in reborn)
    assert (await store.execute(stats(now=5))).claimed == 8


async def test_one_run_serves_each_kind_of_settling(store: AsyncRedisStore) -> None:
    a, b, c, d = [await store.execute(claim(key, now=0)) for key in "abcd"]
    stale = claim("a", now=0)
    await store.execute(suspect(d, now=1))
    ops = [complete(a, b"1", now=2), complete(a, b"2", now=2), complete(a, b"1", now=2), release(b, "why", now=2)]
    ops += [complete(d, b"late", now=2), Complete(stale.id, Fence(1, stale.token), ANSWER, 2 * SECOND_MICROS)]
    ops += [Complete(claim("nobody").id, Fence(1, b"t" * 16), ANSWER, 2 * SECOND_MICROS), complete(c, now=2)]
    replies = await asyncio.gather(*(store.execute(op) for op in ops))
    assert replies == [True, False, True, True, True, False, False, True]
    seen = [record_of(await store.execute(lookup(key, now=2))) for key in "abcd"]
    assert [(each.state.value, each.note) for each in seen] == [
        *(("completed", ""), ("released", "why"), ("completed", ""), ("completed", ""))
    ]
    counted = await store.execute(stats(now=2))
    assert (counted.completed, counted.released, counted.claimed, counted.uncertain) == (3, 1, 0, 0)


async def test_a_damaged_record_fails_alone(store: AsyncRedisStore, redis_url: str) -> None:
    bad = await store.execute(claim("bad", now=0))
    with redis.Redis.from_url(redis_url) as raw:
        raw.hdel(f"{store._layout.prefix}{{0}}:{record_of(bad).id.hex()}", "h")
    claims = (store.execute(claim(key, now=0)) for key in ("first", "new", "bad", "other"))
    _, new, broken, other = await asyncio.gather(*claims, return_exceptions=True)
    assert isinstance(broken, CorruptRecord)
    assert [record_of(each).key for each in (new, other)] == ["new", "other"]  # type: ignore[arg-type]
    settled = (store.execute(complete(held, now=1)) for held in (new, bad, other))  # type: ignore[arg-type]
    assert [type(reply) for reply in await asyncio.gather(*settled, return_exceptions=True)] == [
        *(bool, CorruptRecord, bool)
    ]


def test_a_loop_that_ends_without_closing_leaves_nothing_open(redis_url: str) -> None:
    """Warnings are errors in the tests, and a transport that stays open is a warning."""
    store = AsyncRedisStore.open(with_option(patient("redis", redis_url), "prefix", unique() + ":"))
    assert asyncio.run(store.execute(claim("k", now=0))).granted
    assert pipe_of(store)._protocol is None
    gc.collect()


async def test_a_cancelled_caller_leaves_the_connection_and_the_others_alone(store: AsyncRedisStore) -> None:
    await store.execute(claim("warm", now=0))
    connection = protocol_of(store)
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
    assert protocol_of(store) is connection


async def test_a_broken_connection_is_unclear_for_what_was_sent_and_replaced_for_the_next(
    store: AsyncRedisStore,
) -> None:
    held = await store.execute(claim("k", now=0))
    task = asyncio.ensure_future(store.execute(complete(held, b"x", now=1)))
    await asyncio.sleep(0)
    protocol_of(store).transport.abort()
    with pytest.raises(StoreUnclear):
        await task
    assert await store.execute(complete(held, b"x", now=1))


async def test_a_connection_closed_while_idle_is_noticed_before_it_is_used(store: AsyncRedisStore) -> None:
    await store.execute(claim("a", now=0))
    first = protocol_of(store)
    first.transport.abort()
    while pipe_of(store)._protocol is first:
        await asyncio.sleep(0)
    assert (await store.execute(claim("b", now=0))).granted


async def test_the_end_of_an_old_connection_is_not_the_new_one_s(store: AsyncRedisStore) -> None:
    """The loss of a connection may be reported late. If it were taken for the loss of the new connection, operations in
    flight there would be called unclear, and their replies would go to later callers."""
    await store.execute(claim("warm", now=0))
    old = protocol_of(store)
    old.fail(ConnectionError("in this test"))
    held = await store.execute(claim("a", now=0))
    new = protocol_of(store)
    assert new is not old
    first = asyncio.ensure_future(store.execute(claim("b", now=0)))
    await asyncio.sleep(0)
    assert pipe_of(store)._sent, "it is in flight"
    old.connection_lost(ConnectionError("reported late"))
    second = asyncio.ensure_future(store.execute(lookup("a", now=0)))
    assert record_of(await first).key == "b"
    assert (await second).record == held.record
    assert protocol_of(store) is new


async def test_what_an_old_connection_still_says_is_nobody_s(store: AsyncRedisStore) -> None:
    await store.execute(claim("warm", now=0))
    old = protocol_of(store)
    old.fail(ConnectionError("in this test"))
    await store.execute(claim("a", now=0))
    pending = asyncio.ensure_future(store.execute(claim("b", now=0)))
    await asyncio.sleep(0)
    assert pipe_of(store)._sent, "it is in flight"
    old.data_received(b"*1\r\n:7\r\n")  # it looks like the reply to a claim that created a record
    assert record_of(await pending).created == 0


async def test_the_number_of_those_who_wait_is_bounded(store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.execute(claim("warm", now=0))
    monkeypatch.setattr(pipe, "MAX_PENDING_OPS", 5)
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
    monkeypatch.setattr("retrysafe.stores.redis.node.can_pipe", lambda pool: False)
    store = AsyncRedisStore.open(with_option(patient("redis", redis_url), "prefix", unique() + ":"))
    assert not store.capabilities.native_batching
    replies = await asyncio.gather(*(store.execute(claim(f"k{number}", now=0)) for number in range(20)))
    assert all(reply.granted for reply in replies)
    await store.aclose()
