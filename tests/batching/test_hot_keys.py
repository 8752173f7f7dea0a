"""Claims of one key that wait together are one question (core/shared_claims.py)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.batching.aio import AsyncBatching
from retrysafe.stores.batching.sync import Batching
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.stores.registry import open_async_store
from retrysafe.testing.builders import claim, complete, release
from tests.batching.scripted import AsyncScriptedStore, ScriptedStore, times
from tests.opening import store_url
from tests.waiting import until

CALLERS = 40


async def crowd(store: AsyncScriptedStore, *ops: Claim, submit: bool = False) -> list[Any]:
    """A call in flight, and these behind it."""
    batched = AsyncBatching(store)
    store.hold()
    first = asyncio.ensure_future(batched.execute(claim("in-flight")))
    await asyncio.sleep(0)
    calls = [batched.submit(op) if submit else asyncio.ensure_future(batched.execute(op)) for op in ops]
    await asyncio.sleep(0)
    store.go()
    replies = await asyncio.gather(*(call for call in calls if call is not None), return_exceptions=True)
    await first
    return replies


def granted(replies: list[Any]) -> list[bool]:
    return [reply.granted for reply in replies]


@pytest.mark.store("memory")
@pytest.mark.parametrize("submit", [False, True], ids=["execute", "submit"])
async def test_a_crowd_on_one_new_key_asks_once_and_one_of_it_wins(submit: bool) -> None:
    store = AsyncScriptedStore(AsyncMemoryStore())
    replies = await crowd(store, *(claim("hot") for _ in range(CALLERS)), claim("stranger"), submit=submit)
    assert granted(replies) == [True] + [False] * (CALLERS - 1) + [True]
    assert [[op.key for op in batch] for batch in store.batches] == [["hot", "stranger"]]  # type: ignore[attr-defined]
    assert len({reply.record for reply in replies[:CALLERS]}) == 1, "all see the winner's record"


@pytest.mark.store("memory")
async def test_each_judges_a_completed_record_by_its_own_body() -> None:
    inner = AsyncMemoryStore()
    await inner.execute(complete(await inner.execute(claim("hot", body=b"first"))))
    store = AsyncScriptedStore(inner)
    ops = [claim("hot", body=body) for body in (b"other", b"first", b"first", b"third")]
    replies: list[ClaimReply] = await crowd(store, *ops)
    assert [op.accepts(reply.record.fingerprint) for op, reply in zip(ops, replies, strict=True) if reply.record] == [
        False, True, True, False,
    ]  # fmt: skip
    assert sum(len(batch) for batch in store.batches) + len(store.plain) == 2, "the first call and one question"


@pytest.mark.store("memory")
@pytest.mark.parametrize("submit", [False, True], ids=["execute", "submit"])
async def test_a_released_key_is_not_refused_because_somebody_else_was(submit: bool) -> None:
    """The leader's body is another one, so it is refused; each follower asks in its own name, and one of them runs."""
    inner = AsyncMemoryStore()
    await inner.execute(release(await inner.execute(claim("hot", body=b"first"))))
    store = AsyncScriptedStore(inner)
    ops = [claim("hot", body=b"other"), *(claim("hot", body=b"first") for _ in range(3))]
    replies = await crowd(store, *ops, submit=submit)
    assert granted(replies)[0] is False
    assert sorted(granted(replies)[1:]) == [False, False, True]


@pytest.mark.store("memory")
async def test_an_outage_is_told_to_each_with_an_error_of_its_own() -> None:
    store = AsyncScriptedStore(AsyncMemoryStore())
    batched = AsyncBatching(store)
    store.hold()
    first = asyncio.ensure_future(batched.execute(claim("in-flight")))
    await asyncio.sleep(0)
    calls = [asyncio.ensure_future(batched.execute(claim("hot"))) for _ in range(3)]
    await asyncio.sleep(0)
    store.before = times(2, lambda: StoreUnavailable("away"))
    store.go()
    replies = await asyncio.gather(first, *calls, return_exceptions=True)
    assert [type(reply) for reply in replies] == [StoreUnavailable] * 4
    assert len({id(reply) for reply in replies}) == 4


@pytest.mark.store("memory")
async def test_a_leader_that_leaves_takes_nobody_with_it() -> None:
    store = AsyncScriptedStore(AsyncMemoryStore())
    batched = AsyncBatching(store)
    store.hold()
    first = asyncio.ensure_future(batched.execute(claim("in-flight")))
    await asyncio.sleep(0)
    calls = [asyncio.ensure_future(batched.execute(claim("hot"))) for _ in range(3)]
    await asyncio.sleep(0)
    store.go()
    await first
    store.hold()
    await asyncio.sleep(0)
    calls[0].cancel()
    store.go()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(replies[0], asyncio.CancelledError)
    assert all(isinstance(reply, ClaimReply) for reply in replies[1:])


@pytest.mark.store("memory")
def test_a_crowd_of_threads_asks_once_and_one_of_it_wins() -> None:
    store = ScriptedStore(MemoryStore())
    batched = Batching(store)
    replies: list[ClaimReply] = []
    store.hold()
    first = threading.Thread(target=batched.execute, args=(claim("in-flight"),))
    first.start()
    assert store.entered.wait(60)
    crew = [threading.Thread(target=lambda: replies.append(batched.execute(claim("hot")))) for _ in range(CALLERS)]
    for each in crew:
        each.start()
    until(lambda: len(batched._queues[Claim]._queue) == CALLERS, 60, "everybody to be in the queue")
    store.go()
    for each in (first, *crew):
        each.join(60)
    assert sorted(granted(replies)) == [False] * (CALLERS - 1) + [True]
    assert len(store.plain) + sum(map(len, store.batches)) == 2


@pytest.mark.parametrize("name", ["redis", "postgres", "sqlite"])
async def test_a_hot_key_on_a_server(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """All at once on a new key: one wins; then on the completed one: all get the same record. Strangers are granted."""
    store = open_async_store(store_url(request, tmp_path, name), batching=True)
    await store.migrate()
    try:
        new = [claim("hot", now=None) for _ in range(CALLERS)] + [claim(f"stranger-{n}", now=None) for n in range(8)]
        replies = await asyncio.gather(*(store.execute(op) for op in new))
        assert sum(granted(replies[:CALLERS])) == 1
        assert all(granted(replies[CALLERS:]))
        winner = next(reply for reply in replies[:CALLERS] if reply.granted)
        assert await store.execute(complete(winner, b"done", now=None))
        later = await asyncio.gather(*(store.execute(claim("hot", now=None)) for _ in range(CALLERS)))
        assert granted(later) == [False] * CALLERS
        assert {reply.record.answer.body for reply in later if reply.record and reply.record.answer} == {b"done"}
    finally:
        await store.aclose()
