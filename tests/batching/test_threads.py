"""The sync lane, step by step: whoever finds it idle goes, the next one leads the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from retrysafe.core.ops import Claim, Op
from retrysafe.errors import CorruptRecord, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.batching import queue, sync
from retrysafe.stores.batching.queue import MIN_BATCH_OPS
from retrysafe.stores.batching.sync import Batching, BatchQueue
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim, complete, release, renew
from tests.batching.scripted import SECONDS, ScriptedStore, containing
from tests.waiting import until

pytestmark = pytest.mark.store("memory")


class Caller(threading.Thread):
    """One operation in a thread of its own, and how it ended."""

    def __init__(self, store: Batching, op: Op[Any]) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._op = op
        self.ended: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.ended = self._store.execute(self._op)
        except BaseException as error:
            self.ended = error

    def signal_of_life(self, seconds: float) -> bool:
        """Whether it was told anything within that time."""
        self.join(seconds)
        return not self.is_alive()

    def result(self) -> Any:
        self.join(SECONDS)
        assert not self.is_alive(), "the caller was never told"
        return self.ended


class Bench:
    def __init__(self, mixed_batches: bool = False, max_in_flight: int = 1, **limits: int) -> None:
        self.store = ScriptedStore(MemoryStore())
        self.store.mixed_batches, self.store.max_in_flight = mixed_batches, max_in_flight
        self.batched = Batching(self.store, **limits)
        self.callers: list[Caller] = []

    @property
    def lane(self) -> BatchQueue:
        return self.batched._queues[Claim]

    def call(self, op: Op[Any]) -> Caller:
        self.callers.append(Caller(self.batched, op))
        return self.callers[-1]

    def crowd(self, *ops: Op[Any]) -> list[Caller]:
        """A call in flight, and these behind it, in their order."""
        self.store.hold()
        self.call(claim("in-flight"))
        assert self.store.entered.wait(SECONDS)
        return self.queue(*ops)

    def queue(self, *ops: Op[Any]) -> list[Caller]:
        """Behind what is in flight, in their order."""
        made = []
        for op in ops:
            size = len(self.lane._queue)
            made.append(self.call(op))
            until(lambda size=size: len(self.lane._queue) > size, SECONDS, "the caller to queue")
        return made

    def end(self) -> list[Any]:
        self.store.go()
        return [caller.result() for caller in self.callers]

    def sent(self) -> list[list[str]]:
        return [[op.key for op in batch] for batch in self.store.batches]  # type: ignore[attr-defined]


def errors(replies: list[Any]) -> list[Any]:
    return [reply for reply in replies if isinstance(reply, BaseException)]


def test_nothing_in_flight_goes_at_once_by_the_plain_path() -> None:
    bench = Bench()
    assert bench.batched.execute(claim("a")).granted
    assert bench.batched.execute(claim("b")).granted
    assert (len(bench.store.plain), bench.store.batches) == (2, [])


def test_what_queued_goes_as_one_led_by_the_first() -> None:
    bench = Bench()
    bench.crowd(*(claim(f"k{number}") for number in range(10)))
    assert all(reply.granted for reply in bench.end())
    assert bench.sent() == [[f"k{number}" for number in range(10)]]
    assert not bench.lane.busy


def test_claims_of_one_key_are_one_operation_of_a_batch() -> None:
    bench = Bench()
    bench.crowd(*(claim(key) for key in "aabacb"))
    replies = bench.end()
    assert bench.sent() == [["a", "b", "c"]]
    assert [reply.granted for reply in replies] == [True, True, False, True, False, True, False]


def test_one_lane_where_kinds_go_together() -> None:
    bench = Bench(mixed_batches=True)
    held = [bench.batched.execute(claim(f"held{number}")) for number in range(3)]
    mixed = (claim("x"), renew(held[0]), release(held[1]), complete(held[2]), claim("y"))
    bench.crowd(*mixed)
    assert errors(bench.end()) == []
    assert bench.store.batches == [list(mixed)]


def test_batch_and_queue_are_bounded() -> None:
    bench = Bench(batch=2, queue=5)
    bench.crowd(*(claim(f"k{number}") for number in range(5)))
    with pytest.raises(StoreUnavailable, match="5 operations wait for the store already"):
        bench.batched.execute(claim("too many"))
    assert errors(bench.end()) == []
    assert [len(batch) for batch in bench.sent()] == [2, 2]  # and the fifth alone, by the plain path


def test_an_unclear_batch_is_sent_again_as_a_whole() -> None:
    bench = Bench()
    bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.after = lambda ops: StoreUnclear("lost") if len(bench.store.batches) == 1 and len(ops) > 1 else None
    assert all(reply.granted for reply in bench.end())
    assert bench.sent() == [["a", "b", "c"]] * 2


def test_a_batch_that_stays_unclear_is_unclear_for_each() -> None:
    bench = Bench()
    bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.before = lambda ops: StoreUnclear("silent") if len(ops) > 1 else None
    failed = errors(bench.end())
    assert [type(error) for error in failed] == [StoreUnclear] * 3
    assert len({id(error) for error in failed}) == 3


def test_a_refused_operation_fails_alone() -> None:
    bench = Bench()
    ops = [claim(f"k{number}") for number in range(9)]
    bench.crowd(*ops)
    bad = ops[4].id
    bench.store.before = containing(bad, lambda: CorruptRecord(bad, "damaged"))
    replies = bench.end()[1:]
    assert [isinstance(reply, CorruptRecord) for reply in replies] == [number == 4 for number in range(9)]


def test_what_cannot_go_together_goes_apart_and_beside_the_lane() -> None:
    bench = Bench()
    bench.crowd(claim("a"), claim("b"), claim("c"))
    bench.store.before = lambda ops: BatchRefused("held") if len(ops) > 1 else None
    assert errors(bench.end()) == []
    assert (len(bench.store.batches), len(bench.store.plain)) == (1, 4)
    assert not bench.lane.busy


def test_a_crash_of_the_leader_fails_its_batch_loudly_and_the_lane_works_afterwards() -> None:
    bench = Bench(batch=3)
    bench.crowd(*(claim(f"k{number}") for number in range(4)))
    bench.store.before = lambda ops: ZeroDivisionError("a bug") if len(ops) > 1 else None
    _, leader, second, third, other = bench.end()
    assert isinstance(leader, ZeroDivisionError)
    assert "the leader of a batch stopped: ZeroDivisionError: a bug" in str(second)
    assert isinstance(third, StoreUnclear)
    assert other.granted, "the next in the queue leads itself"
    assert bench.batched.execute(claim("later")).granted


def test_a_crash_in_the_second_half_does_not_take_back_what_the_first_was_told() -> None:
    bench = Bench()
    ops = [claim(f"k{number}") for number in range(4)]
    bench.crowd(*ops)

    def trouble(sent: Any) -> BaseException | None:
        if len(sent) == 4:
            return CorruptRecord(ops[0].id, "split it")
        return ZeroDivisionError("a bug") if ops[3] in sent and len(sent) == 2 else None

    bench.store.before = trouble
    replies = bench.end()[1:]
    assert isinstance(replies[0], ZeroDivisionError), "the leader crashed, and says so"
    assert replies[1].granted
    assert [type(reply) for reply in replies[2:]] == [StoreUnclear] * 2
    assert bench.batched.execute(claim("later")).granted


class Interrupt(BaseException):
    """What a signal handler raises in the main thread: Ctrl-C, a task's time limit."""


class Interruptible:
    """A lock whose waiter is interrupted once the test says so."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.interrupt = threading.Event()

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        while not self.interrupt.is_set():
            if self._lock.acquire(timeout=0.01):
                return True
        raise Interrupt

    def release(self) -> None:
        self._lock.release()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[Interruptible]:
    """The lock each follower waits on, in the order of their coming."""
    made: list[Interruptible] = []
    plain = sync.SyncPending.__init__

    def init(self: sync.SyncPending, op: Op[Any]) -> None:
        plain(self, op)
        made.append(Interruptible(self.signal))
        self.signal = made[-1]  # type: ignore[assignment]

    monkeypatch.setattr(sync.SyncPending, "__init__", init)
    return made


def test_an_interrupted_follower_disturbs_nobody_and_sends_nothing(signals: list[Interruptible]) -> None:
    bench = Bench()
    first, second, third = bench.crowd(claim("a"), claim("b"), claim("c"))
    signals[1].interrupt.set()
    assert isinstance(second.result(), Interrupt)
    bench.end()
    assert first.ended.granted
    assert third.ended.granted
    assert bench.sent() == [["a", "c"]]


def test_an_interrupted_first_follower_is_not_made_the_leader(signals: list[Interruptible]) -> None:
    bench = Bench()
    first, second = bench.crowd(claim("a"), claim("b"))
    signals[0].interrupt.set()
    assert isinstance(first.result(), Interrupt)
    bench.end()
    assert second.ended.granted
    assert not bench.lane.busy


def interrupted_once(
    lead: Callable[[BatchQueue, sync.SyncPending], None],
) -> Callable[[BatchQueue, sync.SyncPending], None]:
    """Whoever leads first is interrupted before it does anything."""
    broken: list[bool] = []

    def lead_once(self: BatchQueue, leader: sync.SyncPending) -> None:
        if not broken:
            broken.append(True)
            raise Interrupt
        lead(self, leader)

    return lead_once


def test_an_appointed_leader_that_is_interrupted_gives_the_lane_on(signals: list[Interruptible]) -> None:
    bench = Bench()
    first, second = bench.crowd(claim("a"), claim("b"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync.BatchQueue, "_lead", interrupted_once(sync.BatchQueue._lead))
        bench.end()
    assert isinstance(first.ended, Interrupt)
    assert second.ended.granted
    assert not bench.lane.busy


def test_patience_is_kept_behind_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(sync, "QUEUE_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(queue, "QUEUE_TIMEOUT_SECONDS", 0.01)
    bench.store.hold()
    hanging = bench.call(claim("in-flight"))
    assert bench.store.entered.wait(SECONDS)
    behind = [bench.call(claim("a")), bench.call(claim("b"))]
    assert all("the store is too slow" in str(caller.result()) for caller in behind)
    bench.store.go()
    assert hanging.result().granted
    assert not bench.lane.busy


# Two batches in flight -----------------------------------------------------------------------------------------


@pytest.fixture
def never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a thread has to wait for the interpreter, nobody takes a flight for a slow one."""
    monkeypatch.setattr(sync, "SLOW_BATCH_SECONDS", 3600.0)


@pytest.mark.usefixtures("never_slow")
def test_a_second_flight_for_what_is_worth_one() -> None:
    bench = Bench(max_in_flight=2, mixed_batches=True)
    bench.crowd(*(claim(f"k{number}") for number in range(MIN_BATCH_OPS - 1)))
    assert bench.store.batches == [], "too few: they wait for the one in flight"
    bench.call(claim("one more"))
    until(lambda: bench.store.batches, SECONDS, "the second flight")
    assert bench.sent() == [["one more", *(f"k{number}" for number in range(MIN_BATCH_OPS - 1))]]
    bench.queue(*(claim(f"l{number}") for number in range(2 * MIN_BATCH_OPS)))
    assert len(bench.store.batches) == 1, "no third one"
    assert errors(bench.end()) == []
    assert (bench.lane.busy, bench.lane._in_flight_ops) == (False, 0)


@pytest.mark.usefixtures("never_slow")
def test_flights_share_what_there_is() -> None:
    bench = Bench(max_in_flight=2, mixed_batches=True)
    bench.crowd(*(claim(f"k{number}") for number in range(MIN_BATCH_OPS - 1)))
    bench.call(claim("one more"))
    until(lambda: bench.store.batches, SECONDS, "the second flight")
    bench.queue(*(claim(f"l{number}") for number in range(2 * MIN_BATCH_OPS)))
    assert errors(bench.end()) == []
    assert max(len(batch) for batch in bench.sent()) <= 3 * MIN_BATCH_OPS // 2


@pytest.mark.usefixtures("never_slow")
def test_who_would_lead_the_second_flight_and_is_interrupted_gives_it_on() -> None:
    bench = Bench(max_in_flight=2, mixed_batches=True)
    bench.crowd(*(claim(f"k{number}") for number in range(MIN_BATCH_OPS - 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync.BatchQueue, "_lead", interrupted_once(sync.BatchQueue._lead))
        last = bench.call(claim("one more"))
        assert isinstance(last.result(), Interrupt)
    assert errors(bench.end()[:-1]) == []
    assert bench.lane._in_flight == 0
    assert "one more" not in [key for batch in bench.sent() for key in batch]


# A flight that is slow to return -------------------------------------------------------------------


class Clocked:
    """The lock a follower waits on, for which SLOW is over when the test says so, and not before."""

    def __init__(self, lock: Any, slow: threading.Event) -> None:
        self._lock = lock
        self._slow = slow

    def acquire(self, *args: Any, timeout: float = -1) -> bool:
        if timeout != sync.SLOW_BATCH_SECONDS:
            return bool(self._lock.acquire(*args, timeout=timeout))
        while not self._slow.is_set():
            if self._lock.acquire(timeout=0.01):
                return True
        return bool(self._lock.acquire(blocking=False))

    def release(self) -> None:
        self._lock.release()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set it, and whatever is in flight is slow."""
    told = threading.Event()
    plain = sync.SyncPending.__init__

    def init(self: sync.SyncPending, op: Op[Any]) -> None:
        plain(self, op)
        self.signal = Clocked(self.signal, told)  # type: ignore[assignment]

    monkeypatch.setattr(sync.SyncPending, "__init__", init)
    monkeypatch.setattr(sync, "SLOW_BATCH_SECONDS", 3600.0)
    return told


def test_who_waits_behind_a_slow_flight_goes_beside_it(slow: threading.Event) -> None:
    """I28: a claim that meets somebody's lock does not delay the keys of others."""
    bench = Bench(mixed_batches=True, max_in_flight=2)
    first, second = bench.crowd(claim("a"), claim("b"))
    slow.set()
    until(lambda: bench.store.batches, SECONDS, "the second flight")
    assert bench.sent() == [["a", "b"]]
    assert bench.lane.busy
    third, fourth = bench.call(claim("c")), bench.call(claim("d"))
    until(lambda: len(bench.store.batches) + len(bench.store.plain) > 2, SECONDS, "the third flight")
    assert errors(bench.end()) == []
    assert all(caller.ended.granted for caller in (first, second, third, fourth))
    assert not bench.lane.busy


def test_with_one_flight_everybody_waits() -> None:
    bench = Bench(mixed_batches=True)
    bench.crowd(claim("a"), claim("b"))
    assert not bench.callers[1].signal_of_life(2 * queue.SLOW_BATCH_SECONDS)
    assert bench.store.batches == []
    assert errors(bench.end()) == []


def test_a_slow_flight_that_fails_fails_alone(slow: threading.Event) -> None:
    bench = Bench(mixed_batches=True, max_in_flight=2)
    bench.store.before = containing(claim("in-flight").id, lambda: StoreUnclear("cut off"))
    bench.crowd(claim("a"), claim("b"))
    slow.set()
    until(lambda: bench.store.batches, SECONDS, "the second flight")
    failed = errors(bench.end())
    assert [type(error) for error in failed] == [StoreUnclear]
    assert not bench.lane.busy


def test_many_threads_over_slow_and_quick_flights_all_get_their_replies() -> None:
    """Leaders whose own operation went in the other flight must wait for it and not for ever."""
    bench = Bench(mixed_batches=True, max_in_flight=2, batch=4)
    for number in range(200):
        bench.call(claim(f"k{number}"))
        if number % 50 == 0:
            bench.store.hold()
        if number % 50 == 49:
            until(lambda: bench.lane._in_flight > 1 or not bench.lane._queue, SECONDS, "a second flight")
            bench.store.go()
    replies = bench.end()
    assert errors(replies) == []
    assert all(reply.granted for reply in replies)
    until(lambda: not bench.lane.busy, SECONDS, "the lane to be free")
