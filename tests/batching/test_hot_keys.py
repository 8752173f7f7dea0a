"""Claims of one key that wait together are one question (core/shared_claims.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.batching.aio import AsyncBatching
from retrysafe.stores.batching.queue import MIN_BATCH_OPS
from retrysafe.stores.batching.sync import Batching
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.stores.registry import open_async_store
from retrysafe.testing.builders import claim, complete, release
from tests.batching.scripted import AsyncScriptedStore, Script, ScriptedStore, times
from tests.opening import store_url
from tests.waiting import until

CALLERS = 40


def asked(store: Script, key: str) -> int:
    """How often the store was asked for a key."""
    return sum(op.key == key for op in (*store.plain, *chain.from_iterable(store.batches)))  # type: ignore[attr-defined]


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
@pytest.mark.parametrize("submit", [False, True], ids=["execute", "submit"])
async def test_a_crowd_beside_a_batch_in_flight_asks_once(submit: bool) -> None:
    """A second batch may be sent beside the first. All it holds is one question, which is sent outside the queue."""
    store = AsyncScriptedStore(AsyncMemoryStore())
    store.mixed_batches, store.max_in_flight = True, 2
    replies = await crowd(store, *(claim("hot") for _ in range(CALLERS)), submit=submit)
    assert granted(replies) == [True] + [False] * (CALLERS - 1)
    assert asked(store, "hot") == 1


@pytest.mark.store("memory")
@pytest.mark.parametrize("submit", [False, True], ids=["execute", "submit"])
async def test_a_crowd_in_a_batch_that_is_refused_asks_once_more(submit: bool) -> None:
    """Each operation of a refused batch is sent alone. Who follows one waits for its second reply."""
    store = AsyncScriptedStore(AsyncMemoryStore())
    store.before = lambda ops: BatchRefused("not together") if len(ops) > 1 else None
    replies = await crowd(store, *(claim("hot") for _ in range(CALLERS)), claim("stranger"), submit=submit)
    assert granted(replies) == [True] + [False] * (CALLERS - 1) + [True]
    assert asked(store, "hot") == 2


@pytest.mark.store("memory")
@pytest.mark.parametrize("submit", [False, True], ids=["execute", "submit"])
async def test_a_question_sent_outside_the_queue_that_fails_is_told_to_all(submit: bool) -> None:
    store = AsyncScriptedStore(AsyncMemoryStore())
    store.mixed_batches, store.max_in_flight = True, 2
    store.before = lambda ops: StoreUnavailable("away")
    batched = AsyncBatching(store)
    store.hold()
    first = asyncio.ensure_future(batched.execute(claim("in-flight")))
    await asyncio.sleep(0)
    ops = [claim("hot") for _ in range(CALLERS)]
    calls = [batched.submit(op) if submit else asyncio.ensure_future(batched.execute(op)) for op in ops]
    store.go()
    replies = await asyncio.gather(first, *(call for call in calls if call is not None), return_exceptions=True)
    assert [type(reply) for reply in replies] == [StoreUnavailable] * (CALLERS + 1)
    assert asked(store, "hot") == 1


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


def crowd_of_threads(store: ScriptedStore, ops: Sequence[Claim]) -> list[Any]:
    """A call in flight, and these behind it, each in a thread. What each thread got or raised, in no order."""
    batched = Batching(store)
    results: list[Any] = []

    def ask(op: Claim) -> None:
        try:
            results.append(batched.execute(op))
        except BaseException as error:
            results.append(error)

    store.hold()
    first = threading.Thread(target=batched.execute, args=(claim("in-flight"),))
    first.start()
    assert store.entered.wait(60)
    crew = [threading.Thread(target=ask, args=(op,)) for op in ops]
    for each in crew:
        each.start()
    until(lambda: len(results) + asked(store, "hot") > 0 or len(batched._queues[Claim]._queue) == len(ops), 60, "all")
    store.go()
    for each in (first, *crew):
        each.join(60)
    return results


@pytest.mark.store("memory")
def test_a_crowd_of_threads_beside_a_batch_in_flight_asks_once() -> None:
    """The fewest threads that justify a second batch: all of them wait when it is sent."""
    store = ScriptedStore(MemoryStore())
    store.mixed_batches, store.max_in_flight = True, 2
    replies = crowd_of_threads(store, [claim("hot") for _ in range(MIN_BATCH_OPS)])
    assert sorted(granted(replies)) == [False] * (MIN_BATCH_OPS - 1) + [True]
    assert asked(store, "hot") == 1


@pytest.mark.store("memory")
def test_a_thread_that_is_interrupted_while_it_asks_for_all_leaves_nobody_waiting() -> None:
    store = ScriptedStore(MemoryStore())
    store.mixed_batches, store.max_in_flight = True, 2
    store.before = lambda ops: KeyboardInterrupt() if ops[0].key == "hot" else None  # type: ignore[attr-defined]
    results = crowd_of_threads(store, [claim("hot") for _ in range(MIN_BATCH_OPS)])
    assert [type(each) for each in results].count(KeyboardInterrupt) == 1
    assert [type(each) for each in results].count(StoreUnclear) == MIN_BATCH_OPS - 1


@pytest.mark.parametrize("name", ["redis", "postgres", "sqlite", "mysql", "mariadb", "mongodb", "dynamodb"])
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
