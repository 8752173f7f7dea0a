"""The heartbeat: a slow function keeps its lease, and one that lost it gets LeaseLost. Each wait is for a signal."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from retrysafe import RetrySafe, current_lease
from retrysafe.core.ops import Claim, Complete, Lookup, Renew
from retrysafe.core.records import Fence
from retrysafe.core.states import State
from retrysafe.engine.aheartbeat import AsyncHeartbeat
from retrysafe.engine.clock import clock
from retrysafe.engine.due_queue import SWEEP_ENTRIES
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import LeaseLost, StoreUnavailable
from retrysafe.policy import Policy
from retrysafe.testing import builders
from tests.unit.engine.gates import PATIENCE, AsyncWatched, Gate, Watched
from tests.waiting import until as settled

FAST = Policy(lease=0.09, failures="release")


def record(store: Watched) -> Any:
    [found] = store.inner.execute(builders.listing(now=None)).records
    return found


# Renewing ----------------------------------------------------------------------------------------


def test_a_slow_function_keeps_its_lease() -> None:
    store = Watched()
    safe = RetrySafe(store)

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> str:
        store.wait_for(Renew, 5)  # longer than the lease, which would lapse after three
        lease = current_lease()
        assert lease is not None
        assert not lease.lost
        return "done"

    assert slow(1) == "done"
    assert record(store).attempt == 1
    safe.close()


async def test_a_slow_coroutine_keeps_its_lease() -> None:
    store = AsyncWatched()
    safe = RetrySafe(async_store=store)

    @safe.once("slow:{n}", policy=FAST)
    async def slow(n: int) -> str:
        await until(lambda: store.watched.count(Renew) >= 5)
        lease = current_lease()
        assert lease is not None
        assert not lease.lost
        return "done"

    assert await slow(1) == "done"
    assert record(store.watched).attempt == 1


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_fast_function_is_never_renewed() -> None:
    store = Watched()
    safe = RetrySafe(store)

    @safe.once("fast:{n}")
    def fast(n: int) -> None: ...

    for n in range(50):
        fast(n)
    assert store.count(Renew) == 0
    safe.close()


def heartbeats() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "retrysafe-heartbeat"}


def test_one_thread_serves_all_calls() -> None:
    store, others = Watched(), heartbeats()
    safe = RetrySafe(store)
    together = threading.Barrier(8)

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> None:
        together.wait(PATIENCE)
        settled(lambda: len(renewed()) == 8, PATIENCE, "a beat for everybody")
        together.wait(PATIENCE)

    def renewed() -> set[bytes]:
        return {op.id for op in list(store.seen) if isinstance(op, Renew)}

    callers = [threading.Thread(target=slow, args=(n,)) for n in range(8)]
    for caller in callers:
        caller.start()
    settled(lambda: len(renewed()) == 8, PATIENCE, "a beat for everybody")
    beating = heartbeats() - others
    for caller in callers:
        caller.join(PATIENCE)
    assert len(beating) == 1
    assert renewed() == {op.id for op in store.seen if isinstance(op, Claim)}
    safe.close()


# Losing ------------------------------------------------------------------------------------------


def steal(store: Watched) -> None:
    """Somebody else takes the record over."""
    held = record(store)
    store.inner._records[held.id] = held._replace(attempt=held.attempt + 1, token=b"x" * 16)


def test_a_function_that_lost_its_lease_is_told() -> None:
    store = Watched()
    events: list[str] = []
    notified = threading.Event()

    def hook(event: Any) -> None:
        events.append(event.name)
        if event.name == "lease_lost":
            notified.set()

    safe = RetrySafe(store, on_event=hook)
    acts: list[str] = []

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> None:
        steal(store)
        assert notified.wait(PATIENCE)
        lease = current_lease()
        assert lease is not None
        assert lease.lost
        lease.check()
        acts.append("the irrevocable act")

    with pytest.raises(LeaseLost, match="no longer owns"):
        slow(1)
    assert acts == []
    assert record(store).attempt == 2, "the new owner's record is untouched"
    assert events.count("lease_lost") == 1
    safe.close()


async def test_a_coroutine_that_lost_its_lease_is_told() -> None:
    store = AsyncWatched()
    safe = RetrySafe(async_store=store)

    @safe.once("slow:{n}", policy=FAST)
    async def slow(n: int) -> None:
        steal(store.watched)
        lease = current_lease()
        assert lease is not None
        await until(lambda: lease.lost)
        lease.check()

    with pytest.raises(LeaseLost):
        await slow(1)
    assert safe.counters["lease_lost"] == 1


def test_a_late_owner_that_does_not_ask_changes_nothing() -> None:
    store = Watched()
    safe = RetrySafe(store)

    @safe.once("slow:{n}")
    def slow(n: int) -> str:
        steal(store)
        return "stale"

    with pytest.raises(LeaseLost):
        slow(1)
    assert record(store).answer is None


def test_a_process_that_slept_through_its_lease_knows_before_its_heartbeat_does() -> None:
    lease = Lease(b"i", "k", Fence(1, b"t"), clock() + 60)
    lease.check()
    lease.until = clock()
    with pytest.raises(LeaseLost):
        lease.check()


# A store that fails ------------------------------------------------------------------------------


def failing_renewals(times: int, error: BaseException) -> Any:
    left = [times]

    def before(op: Any) -> None:
        if isinstance(op, Renew) and left[0]:
            left[0] -= 1
            raise error

    return before


@pytest.mark.parametrize("error", [StoreUnavailable("down"), RuntimeError("a driver's own error")], ids=repr)
def test_a_failed_renewal_is_reported_and_tried_again(error: Exception) -> None:
    store = Watched(failing_renewals(2, error))
    safe = RetrySafe(store)

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> str:
        store.wait_for(Renew, 2 * n)
        return "done"

    assert slow(1) == "done"
    assert slow(2) == "done", "the thread is still there"
    assert safe.counters["renew_failed"] == 2
    safe.close()


@pytest.mark.parametrize("error", [StoreUnavailable("down"), RuntimeError("a driver's own error")], ids=repr)
async def test_a_failed_renewal_is_reported_and_tried_again_async(error: Exception) -> None:
    store = AsyncWatched(Watched(failing_renewals(2, error)))
    safe = RetrySafe(async_store=store)

    @safe.once("slow:{n}", policy=FAST)
    async def slow(n: int) -> str:
        await until(lambda: store.watched.count(Renew) >= 2)
        return "done"

    assert await slow(1) == "done"
    assert safe.counters["renew_failed"] == 2


def test_a_function_that_is_cut_off_from_the_store_is_told_when_its_lease_is_over() -> None:
    """Rule 7: it cannot know whether somebody took over, so it must not go on."""
    store = Watched(failing_renewals(-1, StoreUnavailable("cut off")))
    safe = RetrySafe(store)

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> None:
        lease = current_lease()
        assert lease is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            lease.check()

    with pytest.raises(LeaseLost):
        slow(1)
    safe.close()


# A renewal and a completion at once --------------------------------------------------------------


async def test_a_renewal_in_flight_does_not_disturb_the_completion() -> None:
    """ohshya's renewal changed what the completion compared, so an answered request ran again."""
    store, gate = AsyncWatched(), Gate()
    store.gates[Renew] = gate
    safe = RetrySafe(async_store=store)
    runs = []

    @safe.once("slow:{n}", policy=FAST)
    async def slow(n: int) -> str:
        runs.append(n)
        await gate.reached.wait()  # applied, and its reply on the way
        return "done"

    assert await slow(1) == "done"
    gate.opened.set()
    await asyncio.sleep(0)
    assert record(store.watched).state is State.COMPLETED
    assert await slow(1) == "done"
    assert runs == [1]
    assert "lease_lost" not in safe.counters


def test_a_renewal_that_comes_after_the_completion_is_no_loss() -> None:
    arrived, go = threading.Event(), threading.Event()

    def before(op: Any) -> None:
        if isinstance(op, Renew):
            arrived.set()
            assert go.wait(PATIENCE)

    store = Watched(before)
    safe = RetrySafe(store)

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> str:
        assert arrived.wait(PATIENCE)
        return "done"

    assert slow(1) == "done"
    assert store.count(Complete) == 1
    go.set()
    store.wait_for(Renew, 1)
    safe.close()
    assert record(store).state is State.COMPLETED
    assert "lease_lost" not in safe.counters


# Whose lease -------------------------------------------------------------------------------------


def test_the_lease_is_the_innermost_function_s() -> None:
    store = Watched()
    safe = RetrySafe(store)
    seen: list[Any] = []

    @safe.once("inner:{n}")
    def inner(n: int) -> None:
        seen.append(current_lease())

    @safe.once("outer:{n}")
    def outer(n: int) -> None:
        seen.append(current_lease())
        inner(n)
        seen.append(current_lease())

    assert current_lease() is None
    outer(1)
    assert current_lease() is None
    before, within, after = seen
    assert before is after
    assert within.id != before.id
    assert store.inner.execute(Lookup(before.id)).record is not None


async def test_calls_of_one_loop_do_not_see_each_other_s_lease() -> None:
    safe = RetrySafe(async_store=AsyncWatched())
    seen: dict[int, Any] = {}
    met = asyncio.Barrier(2)

    @safe.once("x:{n}")
    async def x(n: int) -> None:
        await met.wait()
        lease = current_lease()
        assert lease is not None
        seen[n] = lease.id

    await asyncio.gather(x(1), x(2))
    assert seen[1] != seen[2]


# One timer for all of a loop ----------------------------------------------------------------------


OWN = "a key of these tests only"


def lease_of(n: int, lasting: float = 60.0) -> Lease:
    return Lease(n.to_bytes(32, "big"), OWN, Fence(1, bytes(16)), clock() + lasting)


async def test_a_short_lease_beats_in_time_behind_a_long_one() -> None:
    store = AsyncWatched()
    beats = AsyncHeartbeat(store, lambda name, record_id: None)
    stop_long = beats.start(lease_of(1, 3600.0), 3600.0)
    stop_short = beats.start(lease_of(2, 0.09), 0.09)
    await until(lambda: store.watched.count(Renew) >= 1)
    stop_long()
    stop_short()


async def test_calls_that_are_over_leave_nothing_behind() -> None:
    """Their entries are not due for twenty seconds: a busy process would hold a hundred thousand of them."""
    beats = AsyncHeartbeat(AsyncWatched(), lambda name, record_id: None)
    living = [lease_of(n) for n in range(10)]
    for lease in living:
        beats.start(lease, 60.0)
    for n in range(10 * SWEEP_ENTRIES):
        beats.start(lease_of(10 + n), 60.0)()
    # Not `isinstance`: some objects answer that themselves. And other tests have leases, too.
    found = [held for held in gc.get_objects() if type(held) is Lease and held._key == OWN]
    assert len(found) <= 2 * SWEEP_ENTRIES
    assert all(any(held is lease for held in found) for lease in living)


def test_a_loop_that_is_gone_is_forgotten_and_the_next_one_beats() -> None:
    store = AsyncWatched()
    safe = RetrySafe(async_store=store)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    @safe.once("slow:{n}", policy=FAST)
    async def slow(n: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await until(lambda: store.watched.count(Renew) >= n)

    for n in (1, 2, 3):
        asyncio.run(slow(n))
    gc.collect()
    assert [loop() is None for loop in loops[:2]] == [True, True]


def test_closing_stops_the_thread_and_it_starts_again() -> None:
    store, others = Watched(), heartbeats()
    safe = RetrySafe(store)

    @safe.once("slow:{n}", policy=FAST)
    def slow(n: int) -> int:
        store.wait_for(Renew, n)
        return n

    assert slow(1) == 1
    safe.close()
    settled(lambda: heartbeats() <= others, PATIENCE, "the thread to end")
    assert slow(2) == 2
    safe.close()
