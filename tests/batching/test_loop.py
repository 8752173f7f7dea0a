"""The async lane, step by step. One turn of the loop is all it takes until everybody who called is in the queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retrysafe.core.ops import Claim, Op
from retrysafe.errors import CorruptRecord, StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.batching import aio, queue
from retrysafe.stores.batching.aio import AsyncBatching, AsyncBatchQueue
from retrysafe.stores.batching.queue import MIN_BATCH_OPS
from retrysafe.stores.memory import AsyncMemoryStore
from retrysafe.testing.builders import advance, claim, complete, lookup, release, renew, stats
from tests.batching.scripted import AsyncScriptedStore, containing, times

pytestmark = pytest.mark.store("memory")


class Bench:
    """A batched store whose first call is held back, and whoever called after it."""

    def __init__(self, mixed_batches: bool = False, max_in_flight: int = 1, **limits: int) -> None:
        self.store = AsyncScriptedStore(AsyncMemoryStore())
        self.store.mixed_batches, self.store.max_in_flight = mixed_batches, max_in_flight
        self.batched = AsyncBatching(self.store, **limits)
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def lane(self) -> AsyncBatchQueue:
        return self.batched._queues[Claim]

    def call(self, *ops: Op[Any]) -> list[asyncio.Task[Any]]:
        made = [asyncio.ensure_future(self.batched.execute(op)) for op in ops]
        self.tasks += made
        return made

    async def crowd(self, *ops: Op[Any]) -> list[asyncio.Task[Any]]:
        """A call in flight, and these behind it."""
        self.store.hold()
        self.call(claim("in-flight"))
        await asyncio.sleep(0)
        made = self.call(*ops)
        await asyncio.sleep(0)
        assert len(self.lane._queue) == len(ops)
        return made

    async def end(self) -> list[Any]:
        self.store.go()
        return await asyncio.gather(*self.tasks, return_exceptions=True)

    def sent(self) -> list[list[str]]:
        return [[op.key for op in batch] for batch in self.store.batches]  # type: ignore[attr-defined]


def errors(replies: list[Any]) -> list[Any]:
    return [reply for reply in replies if isinstance(reply, BaseException)]


async def test_nothing_in_flight_goes_at_once_by_the_plain_path() -> None:
    bench = Bench()
    for key in ("a", "b"):
        assert (await bench.batched.execute(claim(key))).granted
    assert [op.key for op in bench.store.plain] == ["a", "b"]  # type: ignore[attr-defined]
    assert bench.store.batches == []
    assert not bench.lane.busy


async def test_what_queued_goes_as_one() -> None:
    bench = Bench()
    await bench.crowd(*(claim(f"k{number}") for number in range(20)))
    assert all(reply.granted for reply in await bench.end())
    assert bench.sent() == [[f"k{number}" for number in range(20)]]
    assert len(bench.store.plain) == 1


async def test_one_that_queued_goes_by_the_plain_path() -> None:
    bench = Bench()
    await bench.crowd(claim("only"))
    assert all(reply.granted for reply in await bench.end())
    assert bench.store.batches == []


async def test_a_lane_per_kind() -> None:
    """A completion does not wait for claims, and a batch is of one kind."""
    bench = Bench()
    held = [await bench.batched.execute(claim(f"held{number}")) for number in range(4)]
    await bench.crowd(claim("x"), claim("y"))
    bench.call(renew(held[0]), release(held[1]), complete(held[2]), complete(held[3]))
    replies = await bench.end()
    assert errors(replies) == []
    assert all({type(op) for op in batch} == {type(batch[0])} for batch in bench.store.batches)


async def test_one_lane_where_kinds_go_together() -> None:
    bench = Bench(mixed_batches=True)
    held = [await bench.batched.execute(claim(f"held{number}")) for number in range(3)]
    mixed = (claim("x"), renew(held[0]), release(held[1]), complete(held[2]), claim("y"))
    await bench.crowd(*mixed)
    assert errors(await bench.end()) == []
    assert bench.store.batches == [list(mixed)]


async def test_who_comes_back_at_once_is_in_the_next_batch() -> None:
    """Else the first to come back finds the lane idle and goes alone, and the others wait for it, again and again."""
    bench = Bench()

    async def caller(name: int) -> None:
        for turn in range(3):
            assert (await bench.batched.execute(claim(f"{name}-{turn}"))).granted

    await asyncio.gather(*(caller(name) for name in range(10)))
    assert [len(batch) for batch in bench.store.batches] == [10, 10, 9]
    assert len(bench.store.plain) == 1


@pytest.fixture
def never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine stands still between two turns of the loop, nobody takes a flight for a slow one."""
    monkeypatch.setattr(aio, "SLOW_BATCH_SECONDS", 3600.0)


@pytest.mark.usefixtures("never_slow")
async def test_a_second_flight_for_what_is_worth_one() -> None:
    bench = Bench(max_in_flight=2, mixed_batches=True)
    await bench.crowd(*(claim(f"k{number}") for number in range(MIN_BATCH_OPS - 1)))
    await asyncio.sleep(0)
    assert bench.store.batches == [], "too few: they wait for the one in flight"
    bench.call(claim("one more"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [len(batch) for batch in bench.sent()] == [MIN_BATCH_OPS]
    bench.call(*(claim(f"l{number}") for number in range(3 * MIN_BATCH_OPS)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(bench.store.batches) == 1, "no third one"
    assert errors(await bench.end()) == []
    assert not bench.lane.busy


@pytest.mark.usefixtures("never_slow")
async def test_flights_share_what_there_is() -> None:
    bench = Bench(max_in_flight=2, mixed_batches=True)
    await bench.crowd(*(claim(f"k{number}") for number in range(MIN_BATCH_OPS)))
    bench.call(*(claim(f"l{number}") for number in range(2 * MIN_BATCH_OPS)))
    assert errors(await bench.end()) == []
    assert max(len(batch) for batch in bench.sent()) <= 3 * MIN_BATCH_OPS // 2


async def test_a_flight_that_is_slow_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "SLOW_BATCH_SECONDS", 0.0)
    bench = Bench(max_in_flight=2, mixed_batches=True)
    bench.store.hold()
    bench.call(claim("slow"))
    await asyncio.sleep(0)
    bench.call(claim("a"), claim("b"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert bench.sent() == [["a", "b"]]
    assert errors(await bench.end()) == []
    assert not bench.lane.busy


async def test_the_last_to_come_does_not_have_to_wake_the_others() -> None:
    """Nobody joins after the flight has become slow: a timer sees to those who wait (I28)."""
    bench = Bench(max_in_flight=2, mixed_batches=True)
    bench.store.hold()
    bench.call(claim("slow"))
    await asyncio.sleep(0)
    bench.call(claim("a"), claim("b"))
    await bench.store.next_arrival()
    assert bench.sent() == [["a", "b"]]
    bench.call(claim("c"), claim("d"))
    await bench.store.next_arrival()
    assert bench.sent() == [["a", "b"], ["c", "d"]]
    assert errors(await bench.end()) == []
    assert not bench.lane.busy


@pytest.mark.usefixtures("never_slow")
async def test_a_crash_in_one_of_two_pumps_leaves_nobody_waiting() -> None:
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    bench = Bench(max_in_flight=2, mixed_batches=True)
    bench.store.before = containing(claim("k0").id, lambda: ZeroDivisionError("a bug"))
    await bench.crowd(*(claim(f"k{number}") for number in range(MIN_BATCH_OPS - 1)))
    bench.call(*(claim(f"l{number}") for number in range(2 * MIN_BATCH_OPS)))
    failed = errors(await bench.end())
    assert failed
    assert all(type(error) is StoreUnclear for error in failed)
    assert len(heard) == 1
    assert not bench.lane.busy
    assert (await bench.batched.execute(claim("later"))).granted


async def test_other_operations_go_past_the_lanes() -> None:
    bench = Bench()
    held = await bench.batched.execute(claim("k"))
    await bench.crowd(claim("x"))
    bench.store.go()
    assert await bench.batched.execute(advance(held))
    assert (await bench.batched.execute(lookup("k"))).record is not None
    assert (await bench.batched.execute(stats())).claimed >= 1
    await bench.end()


async def test_claims_of_one_key_are_one_operation_of_a_batch() -> None:
    bench = Bench()
    await bench.crowd(*(claim(key) for key in "aabacb"))
    replies = await bench.end()
    assert bench.sent() == [["a", "b", "c"]]
    assert [reply.granted for reply in replies] == [True, True, False, True, False, True, False]


async def test_a_batch_is_bounded() -> None:
    bench = Bench(batch=3)
    await bench.crowd(*(claim(f"k{number}") for number in range(8)))
    await bench.end()
    assert [len(batch) for batch in bench.sent()] == [3, 3, 2]


async def test_a_flood_of_one_key_is_not_searched_from_end_to_end_each_time() -> None:
    bench = Bench(batch=4)
    await bench.crowd(*[claim("same") for _ in range(40)], claim("other"))
    replies = await bench.end()
    assert sum(reply.granted for reply in replies) == 3


async def test_a_queue_is_bounded() -> None:
    bench = Bench(queue=3)
    await bench.crowd(claim("a"), claim("b"), claim("c"))
    with pytest.raises(StoreUnavailable, match="3 operations wait for the store already"):
        await bench.batched.execute(claim("d"))
    assert errors(await bench.end()) == []


async def test_an_unclear_batch_is_sent_again_as_a_whole() -> None:
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.after = lambda ops: StoreUnclear("lost") if len(bench.store.batches) == 1 and len(ops) > 1 else None
    replies = await bench.end()
    assert bench.sent() == [["a", "b", "c"]] * 2
    assert all(reply.granted for reply in replies)


async def test_a_batch_that_stays_unclear_is_unclear_for_each() -> None:
    """Each caller gets an error of its own: raising one exception in several places mixes up their tracebacks."""
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.before = lambda ops: StoreUnclear("silent") if len(ops) > 1 else None
    failed = errors(await bench.end())
    assert [type(error) for error in failed] == [StoreUnclear] * 3
    assert len({id(error) for error in failed}) == 3
    assert len(bench.store.batches) == 2
    assert (await bench.batched.execute(claim("later"))).granted


async def test_an_unavailable_store_is_not_asked_again_for_each() -> None:
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.before = lambda ops: StoreUnavailable("away") if len(ops) > 1 else None
    assert [type(error) for error in errors(await bench.end())] == [StoreUnavailable] * 3
    assert len(bench.store.batches) == 1


async def test_a_refused_operation_fails_alone() -> None:
    bench = Bench()
    ops = [claim(f"k{number}") for number in range(16)]
    await bench.crowd(*ops)
    bad = ops[11].id
    bench.store.before = containing(bad, lambda: CorruptRecord(bad, "damaged"))
    replies = (await bench.end())[1:]
    assert [isinstance(reply, CorruptRecord) for reply in replies] == [number == 11 for number in range(16)]
    assert all(reply.granted for number, reply in enumerate(replies) if number != 11)


async def test_what_cannot_go_together_goes_apart_and_beside_the_lane() -> None:
    """A key that is held by somebody's transaction is waited for by its own caller only."""
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.before = lambda ops: BatchRefused("held") if len(ops) > 1 else None
    assert errors(await bench.end()) == []
    assert len(bench.store.batches) == 1
    assert len(bench.store.plain) == 4


async def test_a_refused_plain_operation_is_told_its_own_error() -> None:
    bench = Bench()
    await bench.crowd(claim("a"))
    bench.store.before = times(2, lambda: StoreError("no"))
    assert [type(error) for error in errors(await bench.end())] == [StoreError] * 2


async def test_a_cancelled_caller_in_the_queue_disturbs_nobody_and_sends_nothing() -> None:
    bench = Bench()
    _, doomed, _ = await bench.crowd(claim("a"), claim("b"), claim("c"))
    doomed.cancel()
    replies = await bench.end()
    assert bench.sent() == [["a", "c"]]
    assert [type(error) for error in errors(replies)] == [asyncio.CancelledError]


async def test_a_cancelled_caller_in_flight_disturbs_nobody() -> None:
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"))
    bench.tasks[0].cancel()
    replies = await bench.end()
    assert isinstance(replies[0], asyncio.CancelledError)
    assert all(reply.granted for reply in replies[1:])
    assert bench.sent() == [["a", "b"]]
    assert not bench.lane.busy


async def test_a_cancelled_caller_of_a_batch_in_flight_disturbs_nobody() -> None:
    bench = Bench()
    waiting = await bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.go()
    await bench.tasks[0]
    bench.store.hold()
    while not bench.store.batches:
        await asyncio.sleep(0)
    waiting[1].cancel()
    replies = await bench.end()
    assert [type(error) for error in errors(replies)] == [asyncio.CancelledError]
    assert bench.sent() == [["a", "b", "c"]]


async def test_a_crash_in_the_pump_fails_everybody_loudly_and_the_lane_works_afterwards() -> None:
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    bench = Bench(batch=2)
    await bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.before = lambda ops: ZeroDivisionError("a bug") if len(ops) > 1 else None
    failed = errors(await bench.end())
    assert [type(error) for error in failed] == [StoreUnclear] * 3
    assert "the pump of a batch stopped: ZeroDivisionError: a bug" in str(failed[0])
    assert [type(context["exception"]) for context in heard] == [ZeroDivisionError]
    assert (await bench.batched.execute(claim("later"))).granted


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_pump_that_is_cancelled_leaves_nobody_waiting(turns: int) -> None:
    """Even before its first step, when its body never runs."""
    bench = Bench()
    waiting = await bench.crowd(claim("a"), claim("b"))
    bench.store.go()
    await bench.tasks[0]
    bench.store.hold()
    for _ in range(turns):
        await asyncio.sleep(0)
    (pump,) = bench.lane._pumps
    pump.cancel()
    done, pending = await asyncio.wait(waiting, timeout=60)
    assert not pending
    assert all(isinstance(task.exception(), StoreUnclear) for task in done)
    bench.store.go()
    assert (await bench.batched.execute(claim("later"))).granted


async def test_a_store_that_gives_too_few_replies_fails_everybody() -> None:
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"))

    async def short(ops: Any) -> list[Any]:
        return [None]

    bench.store.execute_many = short  # type: ignore[method-assign]
    assert [type(error) for error in errors(await bench.end())] == [StoreUnclear] * 2


async def test_patience_is_kept_behind_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "QUEUE_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(queue, "QUEUE_TIMEOUT_SECONDS", 0.01)
    bench = Bench()
    waiting = await bench.crowd(claim("a"), claim("b"))
    done, pending = await asyncio.wait(waiting, timeout=60)
    assert not pending
    assert all("for the store; the store is too slow" in str(task.exception()) for task in done)
    replies = await bench.end()
    assert replies[0].granted, "what is in flight is not given up"
    assert bench.store.batches == []


async def test_a_lane_at_rest_keeps_no_timer() -> None:
    bench = Bench()
    await bench.crowd(claim("a"), claim("b"))
    assert bench.lane._watch is not None
    await bench.end()
    await asyncio.sleep(0)
    assert bench.lane._watch is None
