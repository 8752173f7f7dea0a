"""Operations that wait for locked rows, however many: those of other keys do not wait for them (I28, I33)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import pytest

from retrysafe.core.ops import Claim, Complete, Op, Renew
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.batching.aio import AsyncBatching
from retrysafe.stores.batching.queue import BATCHED_KINDS, MAX_IN_FLIGHT_BATCHES, build_queues
from retrysafe.stores.batching.sync import Batching
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.testing.builders import claim, complete, record_of, renew
from tests.batching.scripted import SECONDS, AsyncScriptedStore, ScriptedStore
from tests.batching.test_threads import Caller
from tests.waiting import until

pytestmark = pytest.mark.store("memory")

HELD = 2 * MAX_IN_FLIGHT_BATCHES


class Threads:
    """A batched store in which every completion waits until it is let go."""

    def __init__(self) -> None:
        self.store = ScriptedStore(MemoryStore())
        self.store.mixed_batches, self.store.max_in_flight = True, 2
        self.store.before = self.wait_if_held
        self.batched = Batching(self.store)
        self.let_go = threading.Event()
        self.arrived: SimpleQueue[None] = SimpleQueue()

    def wait_if_held(self, ops: Sequence[Op[Any]]) -> BaseException | None:
        if any(isinstance(op, Complete) for op in ops):
            self.arrived.put(None)
            assert self.let_go.wait(SECONDS)
        return None

    def complete_all(self, records: Sequence[Any]) -> list[Caller]:
        """One after the other: each finds that those before it are slow, and is sent beside them."""
        made = []
        for record in records:
            made.append(Caller(self.batched, complete(record)))
            self.arrived.get(timeout=SECONDS)
        return made


def test_threads_that_wait_for_rows_hold_up_nobody_else() -> None:
    bench = Threads()
    *held, free = [record_of(bench.batched.execute(claim(f"k{n}"))) for n in range(HELD + 1)]
    waiting = bench.complete_all(held)
    assert Caller(bench.batched, renew(free)).result() is True
    assert Caller(bench.batched, claim("new")).result().granted
    assert all(caller.is_alive() for caller in waiting), "none of them had to end first"
    bench.let_go.set()
    assert [caller.result() for caller in waiting] == [True] * HELD


async def test_tasks_that_wait_for_rows_hold_up_nobody_else() -> None:
    store = AsyncScriptedStore(AsyncMemoryStore())
    store.mixed_batches, store.max_in_flight = True, 2
    batched, let_go, arrived = AsyncBatching(store), asyncio.Event(), asyncio.Queue[None]()

    async def wait_if_held(ops: Sequence[Op[Any]]) -> None:
        if any(isinstance(op, Complete) for op in ops):
            arrived.put_nowait(None)
            await let_go.wait()

    store._pass = wait_if_held  # type: ignore[method-assign]
    *held, free = [record_of(await batched.execute(claim(f"k{n}"))) for n in range(HELD + 1)]
    waiting = []
    async with asyncio.timeout(SECONDS):
        for record in held:
            waiting.append(asyncio.ensure_future(batched.execute(complete(record))))
            await arrived.get()
        assert await batched.execute(renew(free)) is True
        assert (await batched.execute(claim("new"))).granted
    assert not any(task.done() for task in waiting), "none of them had to end first"
    let_go.set()
    assert await asyncio.gather(*waiting) == [True] * HELD


def test_a_batch_that_happened_in_part_is_told_to_each() -> None:
    """Renewals of locked rows fail; the others have happened and are not sent again."""
    store = ScriptedStore(MemoryStore())
    batched = Batching(store)
    first, held, free = [record_of(batched.execute(claim(f"k{n}"))) for n in range(3)]
    refusal = BatchRefused("held", [StoreUnavailable("held"), True])
    store.before = lambda ops: refusal if len(ops) > 1 else None
    store.hold()
    store.entered.clear()
    callers = [Caller(batched, renew(first))]
    assert store.entered.wait(SECONDS)
    for record in (held, free):
        callers.append(Caller(batched, renew(record)))
        until(lambda: len(batched._queues[Renew]._queue) == len(callers) - 1, SECONDS, "the queue")
    store.go()
    results = [caller.result() for caller in callers]
    assert results[0] is True
    assert isinstance(results[1], StoreUnavailable)
    assert results[2] is True
    assert [op for op in store.plain if isinstance(op, Renew)] == [renew(first)]


@pytest.mark.parametrize(("mixed", "in_flight", "queues"), [(False, 1, len(BATCHED_KINDS)), (True, 1, 1), (True, 2, 2)])
def test_renewals_have_a_queue_of_their_own_where_rows_are_waited_for(mixed: bool, in_flight: int, queues: int) -> None:
    store = ScriptedStore(MemoryStore())
    store.mixed_batches, store.max_in_flight = mixed, in_flight
    made = build_queues(store.capabilities, lambda allowed: object())
    assert set(made) == set(BATCHED_KINDS)
    assert len(set(map(id, made.values()))) == queues
    assert (made[Renew] is made[Claim]) is (queues == 1)
