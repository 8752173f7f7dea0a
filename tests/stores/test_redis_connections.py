"""Connections to Redis that are never had, cut, silent or cancelled: what is told, and what the next one finds."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from retrysafe.core.records import Answer
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.redis import AsyncRedisStore, RedisStore
from retrysafe.testing.builders import claim, complete, lookup
from tests.opening import patient, unique, with_option
from tests.servers.ports import free_port

pytestmark = pytest.mark.store("redis")


@pytest.fixture
def prefix() -> str:
    return unique("t") + ":"


@pytest.fixture
def url(redis_url: str, prefix: str) -> str:
    return with_option(patient("redis", redis_url), "prefix", prefix)


@pytest.fixture
async def astore(url: str) -> AsyncIterator[AsyncRedisStore]:
    """With a pool of one: a connection that came back unclean is the next one's."""
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


def test_a_loop_that_ends_at_any_turn_leaves_no_connection(url: str) -> None:
    """Nobody closes the store; its tasks are cancelled, some before their first step. What is left is an error here:
    a warning about an open connection, at the latest when it is collected."""

    async def asks_and_leaves(turns: int) -> None:
        store = AsyncRedisStore.open(url)
        asked = asyncio.ensure_future(store.execute(lookup(claim())))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()

    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what others left is not told here
    for turns in range(60):
        asyncio.run(asks_and_leaves(turns))
    gc.collect()


@contextmanager
def cutting_proxy(redis_url: str) -> Iterator[str]:
    """Passes everything on, but hangs up in place of the first answer to a script: done, and nobody told."""
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


async def cancelled_after(turns: int, work: Any) -> bool:
    """Cancel a task after so many turns of the event loop. False if it was done before."""
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
    """At every turn of the loop, on a pool of one connection: the next operation gets its own reply."""
    await astore.execute(complete(await astore.execute(claim("other")), b"other"))
    interrupted = 0
    for turns in range(40):
        op = claim(f"k{turns}", lease=600, now=0)
        interrupted += await cancelled_after(turns, astore.execute(op))
        seen = await astore.execute(lookup("other"))
        assert seen.record is not None
        assert seen.record.answer == Answer(201, b"other", [("content-type", "text/plain")])
        # Whether the cancelled claim got through or not, sending it again tells.
        again = await astore.execute(op)
        assert again.granted
        assert again.record.token == op.token
    assert interrupted > 1


async def test_a_cancelled_batch_leaves_no_answers_for_the_next(astore: AsyncRedisStore) -> None:
    interrupted = 0
    for turns in range(40):
        ops = [claim(f"{turns}-{n}", now=0) for n in range(5)]
        interrupted += await cancelled_after(turns, astore.execute_many(ops))
        replies = await astore.execute_many(ops)
        assert [reply.record.token for reply in replies] == [op.token for op in ops]
        assert all(reply.granted for reply in replies)
    assert interrupted > 1
