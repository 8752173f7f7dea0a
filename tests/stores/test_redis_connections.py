"""Connections to Redis that fail, are cut, hang or are cancelled: which error is raised, and what the next caller
gets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from retrysafe.core.records import Answer
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.redis import AsyncRedisStore, RedisStore
from retrysafe.testing.builders import claim, complete, lookup
from tests.opening import patient, unique, with_option
from tests.servers.ports import free_port
from tests.stepping import HOWS, How, begin, leaking_turns

pytestmark = pytest.mark.store("redis")


@pytest.fixture
def prefix() -> str:
    return unique("t") + ":"


@pytest.fixture
def url(redis_url: str, prefix: str) -> str:
    return with_option(patient("redis", redis_url), "prefix", prefix)


@pytest.fixture
async def astore(url: str) -> AsyncIterator[AsyncRedisStore]:
    """With a pool of one connection: if it were returned with unread data, the next caller would get them."""
    opened = AsyncRedisStore.open(with_option(url, "max_connections", "1"))
    yield opened
    await opened.aclose()


# A server that is not there, or goes away ---------------------------------------------------------


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_no_server_means_nothing_was_sent() -> None:
    port = free_port()
    store = RedisStore.open(f"redis://127.0.0.1:{port}/0")
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port} could not be reached") as caught:
        store.execute(claim())
    assert not isinstance(caught.value, StoreUnclear)


async def test_no_server_means_nothing_was_sent_async() -> None:
    port = free_port()
    store = AsyncRedisStore.open(f"redis://127.0.0.1:{port}/0")
    with pytest.raises(StoreUnavailable, match="could not be reached") as caught:
        await store.execute(claim())
    assert not isinstance(caught.value, StoreUnclear)
    await store.aclose()


@pytest.mark.parametrize("how", HOWS)
def test_an_end_at_any_turn_leaves_no_connection(url: str, how: How) -> None:
    """Tasks are cancelled at each turn of the event loop, some before their first step."""
    assert leaking_turns(lambda: AsyncRedisStore.open(url), how) == []


async def test_a_store_closed_before_its_first_step_to_the_server_tells_who_waits(url: str) -> None:
    """The task that connects is cancelled before its first step, so it cannot fail the callers itself."""
    store = AsyncRedisStore.open(url)
    pending = asyncio.ensure_future(store.execute(claim(now=None)))
    await asyncio.sleep(0)
    await store.aclose()
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable, match="was closed"):
            await pending


async def test_a_store_that_is_closed_as_its_connection_breaks_makes_no_other(url: str) -> None:
    store = AsyncRedisStore.open(url)
    await store.execute(claim(now=None))
    pipe = store._pipe
    assert pipe is not None
    assert pipe._protocol is not None
    sent = asyncio.ensure_future(store.execute(claim(now=None)))
    unsent = asyncio.ensure_future(store.execute(claim(now=None)))
    await asyncio.sleep(0)  # one was written, the other waits for the end of the turn
    assert pipe._unsent
    closing = begin(store.aclose())
    pipe._protocol.fail(ConnectionError("in this test"))
    async with asyncio.timeout(60):
        await closing
        results = await asyncio.gather(sent, unsent, return_exceptions=True)
    assert [isinstance(each, StoreUnavailable | StoreUnclear) for each in results] == [True, True], results
    assert pipe._tasks == set()
    assert pipe._protocol is None


async def test_a_store_closed_while_it_connects_leaves_the_client_s_other_connections_alone(
    url: str, prefix: str
) -> None:
    """The other connections belong to the application."""
    server = url.partition("?")[0]
    async with redis.asyncio.Redis.from_url(server) as client, redis.asyncio.Redis.from_url(server) as other:
        theirs = asyncio.ensure_future(client.blpop([f"{prefix}queue"], timeout=60))
        async with asyncio.timeout(60):
            while not any(each["cmd"] == "blpop" for each in await other.client_list()):
                await asyncio.sleep(0)
            store = AsyncRedisStore(client, prefix=prefix)
            pending = asyncio.ensure_future(store.execute(claim(now=None)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the store has begun to connect
            await store.aclose()
            with pytest.raises(StoreUnavailable):
                await pending
            await other.rpush(f"{prefix}queue", "x")
            assert await theirs == (f"{prefix}queue".encode(), b"x")


@contextmanager
def cutting_proxy(redis_url: str) -> Iterator[str]:
    """Forwards everything, but closes the connection instead of the first reply to a script: it was done, but the
    caller gets no reply."""
    address = redis.connection.parse_url(redis_url)
    with listener() as server:

        def serve() -> None:
            hung_up = False
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, socket.create_connection((address["host"], address["port"])) as upstream:
                    while sent := client.recv(1 << 20):
                        upstream.sendall(sent)
                        got = upstream.recv(1 << 20)
                        if b"EVALSHA" in sent and not got.startswith(b"-NOSCRIPT") and not hung_up:
                            hung_up = True
                            break
                        client.sendall(got)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        yield redis_url.replace(f"{address['host']}:{address['port']}", f"127.0.0.1:{port}")
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def test_an_answer_that_never_came_is_unclear_and_is_recognised_when_sent_again(redis_url: str, prefix: str) -> None:
    with cutting_proxy(patient("redis", redis_url)) as url:
        store = RedisStore.open(with_option(with_option(url, "prefix", prefix), "max_connections", "1"))
        op = claim(now=None)
        with pytest.raises(StoreUnclear, match="may have been done"):
            store.execute(op)
        reply = store.execute(op)
        assert reply.granted
        assert reply.record.attempt == 1
        assert reply.record.token == op.token
        store.close()


async def test_a_lost_answer_is_unclear_async(redis_url: str, prefix: str) -> None:
    with cutting_proxy(patient("redis", redis_url)) as url:
        store = AsyncRedisStore.open(with_option(with_option(url, "prefix", prefix), "max_connections", "1"))
        op = claim(now=None)
        with pytest.raises(StoreUnclear):
            await store.execute(op)
        assert (await store.execute(op)).granted
        await store.aclose()


def test_a_silent_server_is_given_up_on() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        store = RedisStore.open(f"redis://127.0.0.1:{port}/0?socket_timeout=0.05")
        with pytest.raises(StoreUnavailable):
            store.execute(claim())
        store.close()


# Cancellation -------------------------------------------------------------------------------------


async def cancel_after(turns: int, work: Any) -> bool:
    """Cancel a task after this many turns of the event loop. False if it had finished before."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    if not task.cancel():
        await task
        return False
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def test_a_cancelled_task_leaves_no_answer_for_the_next(astore: AsyncRedisStore) -> None:
    """The task is cancelled at every turn, on a pool of one connection. The next operation gets its own reply."""
    await astore.execute(complete(await astore.execute(claim("other")), b"other"))
    interrupted = 0
    for turns in range(40):
        op = claim(f"k{turns}", lease=600, now=0)
        interrupted += await cancel_after(turns, astore.execute(op))
        seen = await astore.execute(lookup("other"))
        assert seen.record is not None
        assert seen.record.answer == Answer(201, b"other", [("content-type", "text/plain")])
        # The cancelled claim may have been executed or not. Sent again, it is granted in both cases.
        again = await astore.execute(op)
        assert again.granted
        assert again.record.token == op.token
    assert interrupted > 1


async def test_a_cancelled_batch_leaves_no_answers_for_the_next(astore: AsyncRedisStore) -> None:
    interrupted = 0
    for turns in range(40):
        ops = [claim(f"{turns}-{n}", now=0) for n in range(5)]
        interrupted += await cancel_after(turns, astore.execute_many(ops))
        replies = await astore.execute_many(ops)
        assert [reply.record.token for reply in replies] == [op.token for op in ops]
        assert all(reply.granted for reply in replies)
    assert interrupted > 1
