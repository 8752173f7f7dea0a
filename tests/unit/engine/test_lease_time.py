"""An owner counts its lease from before it asked (rule 14, I33). Time is a number here, and moves as the test says."""

from __future__ import annotations

import threading
import time
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe import RetrySafe, current_lease
from retrysafe.core.ops import Op, Renew
from retrysafe.core.outcomes import Execute
from retrysafe.core.records import Fence
from retrysafe.engine import aheartbeat, aperform, heartbeat, perform
from retrysafe.engine.aheartbeat import AsyncHeartbeat
from retrysafe.engine.clock import clock
from retrysafe.engine.due_queue import SWEEP_ENTRIES, DueQueue
from retrysafe.engine.heartbeat import MAX_BEAT_THREADS, MAX_FAILING_BEATS, Heartbeat, Lease
from retrysafe.errors import LeaseLost, StoreUnavailable
from retrysafe.policy import Policy
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing import builders
from retrysafe.testing.builders import record_of
from tests.unit.engine.gates import PATIENCE, AsyncWatched, Watched
from tests.waiting import until as settled

R = TypeVar("R")
LEASE = 10.0


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    for module in (perform, aperform, heartbeat, aheartbeat):
        monkeypatch.setattr(module, "clock", made)
    return made


class Slow(Watched):
    """A store whose replies take a while: time passes between asking and hearing."""

    def __init__(self, hands: Hands, **seconds: float) -> None:
        self._hands = hands
        self._seconds = seconds

        def before(op: Op[Any]) -> None:
            hands.now += self._seconds.get(type(op).__name__, 0.0)

        super().__init__(before)


POLICY = Policy(lease=LEASE)


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_claim_s_lease_is_counted_from_before_it_was_sent(hands: Hands, mode: str) -> None:
    store = Slow(hands, Claim=4.0)
    safe = RetrySafe(store, async_store=AsyncWatched(store))
    seen: list[Lease] = []

    def look() -> None:
        lease = current_lease()
        assert lease is not None
        seen.append(lease)
        lease.check()
        hands.now += 5.9
        lease.check()
        hands.now += 0.1
        with pytest.raises(LeaseLost):
            lease.check()

    if mode == "sync":

        @safe.once("x:{n}", policy=POLICY)
        def called(n: int) -> None:
            look()

        called(1)
    else:

        @safe.once("x:{n}", policy=POLICY)
        async def awaited(n: int) -> None:
            look()

        await awaited(1)
    assert seen[0].until == pytest.approx(1000.0 + LEASE), "neither from when the reply came, nor ten times as long"
    safe.close()


def test_a_blocked_loop_believes_no_longer_than_the_store() -> None:
    """Two owners passed `check()`: the first had counted from when its loop got round to the reply."""
    record = record_of(MemoryStore().execute(builders.claim(lease=1, now=50)))
    asked = Execute(record.fence, record, record.started, asked=200.0)
    assert asked.until == 201.0
    late = Execute(record.fence, record, now=record.lease_until - 250_000, asked=900.0)
    assert late.until == 900.25, "recognised as its own, a quarter of a second before it lapses"


def test_a_renewal_is_counted_from_before_it_was_sent(hands: Hands) -> None:
    store = MemoryStore()
    held = record_of(store.execute(builders.claim(lease=60, now=None)))
    lease = Lease(held.id, "k", held.fence, hands.now + 1)
    lease.duration = LEASE

    class Behind:
        def execute(self, op: Op[R]) -> R:
            hands.now += 3.0
            return store.execute(op)

    beats = Heartbeat(Behind, lambda name, record_id: None)  # type: ignore[arg-type]
    lease.done = False
    beats._renew_lease(lease)
    assert lease.until == 1000.0 + LEASE
    lease.end()
    beats.stop()


async def test_the_same_on_an_event_loop(hands: Hands) -> None:
    store = Slow(hands, Renew=3.0)
    held = record_of(store.inner.execute(builders.claim(lease=60, now=None)))
    lease = Lease(held.id, "k", held.fence, hands.now + 1)
    beats = AsyncHeartbeat(AsyncWatched(store), lambda name, record_id: None)
    beats.start(lease, LEASE)
    assert beats._beats is not None
    await beats._beats._renew_lease(lease)
    assert lease.until == 1000.0 + LEASE
    lease.end()


def test_a_reply_that_came_late_does_not_shorten_what_is_known() -> None:
    lease = Lease(b"i", "k", Fence(1, b"t"), 500.0)
    lease.duration = LEASE
    lease.record_renewal(480.0)
    assert lease.until == 500.0
    lease.record_renewal(495.0)
    assert lease.until == 505.0


def test_the_clock_goes_on_while_the_machine_is_suspended() -> None:
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert abs(clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    before = clock()
    assert clock() >= before


@pytest.mark.parametrize(("left", "fits"), [(5.1, True), (5.0, False), (4.9, False)])
def test_a_call_fits_only_if_all_of_it_does(hands: Hands, left: float, fits: bool) -> None:
    lease = Lease(b"i", "k", Fence(1, b"t"), hands.now + left)
    assert lease.fits(5.0) is fits
    lease.lost = True
    assert not lease.fits(0.0)


# One that waits holds up nobody else -----------------------------------------------------------------


class OneHeld(Watched):
    """Somebody has locked one row: its renewals wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: bytes = b""
        self.waits, self.let_go = threading.Event(), threading.Event()

    def execute(self, op: Op[R]) -> R:
        if isinstance(op, Renew) and op.id == self.held:
            self.waits.set()
            assert self.let_go.wait(PATIENCE)
        return super().execute(op)


def test_a_renewal_that_waits_for_a_row_holds_up_nobody_else() -> None:
    """One row that somebody else held stopped the heartbeat of the whole process, and unrelated keys ran twice."""
    store = OneHeld()
    safe = RetrySafe(store)
    runs: list[int] = []

    @safe.once("slow:{n}", policy=Policy(lease=0.3, failures="release"))
    def slow(n: int) -> None:
        runs.append(n)
        lease = current_lease()
        assert lease is not None
        if n == 0:
            store.held = lease.id
            assert store.let_go.wait(PATIENCE)
            return
        assert store.waits.wait(PATIENCE)
        beaten = lambda: sum(op.id == lease.id for op in list(store.seen) if isinstance(op, Renew))  # noqa: E731
        settled(lambda: beaten() >= 4, PATIENCE, "four beats of a key that nobody holds")
        # Not at once: a process that stood still has a lease again only after its next beat.
        settled(lambda: lease.fits(0.0), PATIENCE, "a lease that is kept")

    held = threading.Thread(target=slow, args=(0,))
    held.start()
    settled(lambda: bool(store.held), PATIENCE, "the first call")
    slow(1)
    store.let_go.set()
    held.join(PATIENCE)
    assert sorted(runs) == [0, 1]
    safe.close()


def test_beats_that_all_wait_are_few_threads_and_end_with_the_store() -> None:
    store = Watched()
    gate, arrived = threading.Event(), threading.Semaphore(0)

    def before(op: Any) -> None:
        arrived.release()
        assert gate.wait(PATIENCE)

    store.before = before
    beats = Heartbeat(lambda: store, lambda name, record_id: None)
    leases = [Lease(n.to_bytes(32, "big"), "k", Fence(1, b"t"), clock() + 0.01) for n in range(3 * MAX_BEAT_THREADS)]
    for lease in leases:
        beats.start(lease, 0.01)
    for _ in range(MAX_BEAT_THREADS):
        assert arrived.acquire(timeout=PATIENCE)
    mine = [thread for thread in threading.enumerate() if thread in beats._beat_threads]
    assert len(mine) == MAX_BEAT_THREADS
    for lease in leases:
        lease.end()
    gate.set()
    beats.stop()
    assert not any(thread.is_alive() for thread in mine)


def test_leases_whose_beats_fail_leave_threads_to_the_others() -> None:
    """The rows of a dozen calls are locked. Their first beats fail, and the next ones wait in the store."""
    failing = {n.to_bytes(32, "big") for n in range(3 * MAX_BEAT_THREADS)}
    gate, renewed = threading.Event(), threading.Event()
    failed, waits = set[bytes](), threading.Semaphore(0)

    class Locked(Watched):
        def execute(self, op: Op[R]) -> R:
            assert isinstance(op, Renew)
            if op.id not in failing:
                renewed.set()
                return True  # type: ignore[return-value]
            if op.id not in failed:
                failed.add(op.id)
                raise StoreUnavailable("locked")
            waits.release()
            assert gate.wait(PATIENCE)
            raise StoreUnavailable("locked")

    store = Locked()
    beats = Heartbeat(lambda: store, lambda name, record_id: None)
    leases = [Lease(each, "k", Fence(1, b"t"), clock() + 0.01) for each in sorted(failing)]
    for lease in leases:
        beats.start(lease, 0.01)
    for _ in range(MAX_FAILING_BEATS):
        assert waits.acquire(timeout=PATIENCE)
    settled(lambda: len(failed) == len(failing), PATIENCE, "a beat of each that failed")
    free = Lease(b"f" * 32, "k", Fence(1, b"t"), clock() + 0.01)
    beats.start(free, 0.01)
    assert renewed.wait(PATIENCE)
    assert not waits.acquire(blocking=False), "no more of them than that"
    for lease in (*leases, free):
        lease.end()
    gate.set()
    beats.stop()


def test_after_an_outage_every_lease_is_renewed_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last beat of each lease of the process has failed. Those that find no place begin when others have ended, and
    not at a later moment: leases that began together would run out meanwhile."""
    monkeypatch.setattr(heartbeat, "RETRY_SECONDS", 3600.0)
    gate, renewed = threading.Event(), set[bytes]()

    class Back(Watched):
        def execute(self, op: Op[R]) -> R:
            assert isinstance(op, Renew)
            assert gate.wait(PATIENCE)
            renewed.add(op.id)
            return True  # type: ignore[return-value]

    store = Back()
    beats = Heartbeat(lambda: store, lambda name, record_id: None)
    leases = [Lease(n.to_bytes(32, "big"), "k", Fence(1, b"t"), clock() + 0.01) for n in range(5 * MAX_BEAT_THREADS)]
    for lease in leases:
        lease.failing = True
        beats.start(lease, 0.01)
    settled(lambda: len(beats._held_back) == len(leases) - MAX_FAILING_BEATS, PATIENCE, "all of them to be due")
    gate.set()
    settled(lambda: len(renewed) == len(leases), PATIENCE, "a renewal of each")
    for lease in leases:
        lease.end()
    beats.stop()


def test_calls_that_are_over_leave_nothing_behind_one_slow_call() -> None:
    """Two hundred thousand entries, 111 MB, stood behind one call that took its time."""
    due: DueQueue[Any] = DueQueue()
    slow = Lease(b"slow", "k", Fence(1, b"t"), 60.0)
    due.add(20.0, slow)
    for n in range(20 * SWEEP_ENTRIES):
        quick = Lease(b"quick", "k", Fence(1, b"t"), 60.0)
        due.add(21.0 + n, quick)
        quick.end()
    assert len(due) <= 2 * SWEEP_ENTRIES
    assert due.next_due() == 20.0
    assert due.pop_due(19.9) is None
    assert due.pop_due(20.0) is slow
    assert due.next_due() is None


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_leases_come_in_the_order_in_which_they_are_due(added: list[tuple[int, bool]]) -> None:
    """Most are added in that order, and some are not: of another duration, or after a beat that failed."""
    due: DueQueue[Any] = DueQueue()
    leases = [(float(when), Lease(b"l", "k", Fence(1, b"t"), 60.0), ended) for when, ended in added]
    for when, lease, ended in leases:
        due.add(when, lease)
        lease.done = ended
    left = sorted(when for when, _, ended in leases if not ended)
    assert due.next_due() == (left[0] if left else None)
    moments = {id(lease): when for when, lease, _ in leases}
    popped = []
    while (lease := due.pop_due(30.0)) is not None:
        assert not lease.done
        popped.append(moments[id(lease)])
    assert popped == left
    assert due.pop_due(30.0) is None
