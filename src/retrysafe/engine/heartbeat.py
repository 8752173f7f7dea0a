"""The lease of a running call, and the heartbeat that renews it.

One thread watches the leases of all calls of a process; on an event loop one timer does (aheartbeat.py). A call that
ends before its first beat costs one heap push. A few other threads send the renewals, so that a renewal that waits for
a locked row delays no other.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Literal

from retrysafe.core.ops import Renew
from retrysafe.core.records import Fence
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.clock import clock
from retrysafe.engine.due_queue import DueQueue
from retrysafe.errors import LeaseLost
from retrysafe.stores.base import Store

BEATS_PER_LEASE = 3
IDLE_SECONDS = 5.0
RETRY_SECONDS = 0.1
"""Delay before a beat for which no thread could be started is tried again."""
MAX_BEAT_THREADS = 8
"""Threads that send beats. One is nearly always enough; the others are for beats that wait for a lock."""
MAX_FAILING_BEATS = MAX_BEAT_THREADS // 2
"""How many beats may be under way at once for leases whose last beat failed: leases that can be renewed go first."""

BeatName = Literal["renewed", "renew_failed", "lease_lost"]
OnBeat = Callable[[BeatName, bytes], None]
"""Called with `renewed`, `renew_failed` or `lease_lost`, and the record's id."""

StopCallback = Callable[[], None]
"""Ends the heartbeat of a lease, or whatever else was started."""


class Lease:
    """The right of one attempt to run, as its process knows it.

    `until` is on this process's clock (engine/clock.py), counted from the moment before the claim or renewal was sent.
    The store read its clock later, so before `until` it cannot have granted the key to another attempt.
    """

    __slots__ = ("_attempt", "_key", "done", "duration", "failing", "fence", "id", "kept", "lost", "settling", "until")

    def __init__(self, record_id: bytes, key: str, fence: Fence, until: float) -> None:
        self.id = record_id
        self.fence = fence
        self.kept = False
        """Whether a heartbeat keeps this lease."""
        self.lost = False
        self.failing = False
        """Whether the last heartbeat failed: the row is locked, or the store is away."""
        self.settling = False
        """Whether the attempt is being settled. From then on the settling write, not a heartbeat, finds out whether the
        lease was lost."""
        self.done = False
        self.until = until
        self.duration = 0.0
        """Seconds that a renewal asks for; set when the heartbeat starts."""
        self._key = key
        self._attempt = fence.attempt

    def end(self) -> None:
        """Stop the heartbeat: the work is over."""
        self.done = True

    def build_renewal(self) -> Renew:
        return Renew(self.id, self.fence, duration_to_micros(self.duration))

    def record_renewal(self, sent_at: float) -> None:
        """Move the end of the lease after a renewal that was sent at `sent_at`."""
        self.failing = False
        self.until = max(self.until, sent_at + self.duration)

    def fits(self, seconds: float) -> bool:
        """Whether work of so many seconds would end before the lease does."""
        return not self.lost and clock() + seconds < self.until

    def check(self) -> None:
        """Raise LeaseLost if another attempt has taken over, or may have. Call it before each irrevocable act.

        "May have" matters. A process that was paused for longer than its lease can get here before its heartbeat
        notices; a process that is cut off from the store never notices.
        """
        if self.lost or clock() >= self.until:
            raise self.lease_lost_error()

    def lease_lost_error(self) -> LeaseLost:
        return LeaseLost(self._key, self._attempt)


_current: ContextVar[Lease | None] = ContextVar("retrysafe_lease", default=None)


def current_lease() -> Lease | None:
    """The lease of the guarded function that is running here, or None."""
    return _current.get()


@contextmanager
def hold_lease(lease: Lease) -> Iterator[None]:
    token = adopt_lease(lease)
    try:
        yield
    finally:
        disown_lease(token)


def adopt_lease(lease: Lease) -> Token[Lease | None]:
    """Make this the current lease. In a context that ends with the work, such as a task's, it need not be disowned."""
    return _current.set(lease)


def disown_lease(token: Token[Lease | None]) -> None:
    try:
        _current.reset(token)
    except ValueError:  # an async view under WSGI ends in another context than it began in
        _current.set(None)


@contextmanager
def stop_on_exit(stop: StopCallback) -> Iterator[None]:
    """Call `stop` at the end of the block."""
    try:
        yield
    finally:
        stop()


class Heartbeat:
    """The heartbeat for threads: one thread that watches the leases, and others that renew those that are due."""

    def __init__(self, store: Callable[[], Store], on_beat: OnBeat) -> None:
        self._store = store
        self._on_beat = on_beat
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._due: DueQueue[Lease] = DueQueue()
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._ready: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._beat_threads: set[threading.Thread] = set()
        self._idle_threads = 0
        self._failing: set[Lease] = set()
        """The leases whose last beat failed and whose next beat is under way."""
        self._held_back: deque[Lease] = deque()
        """More such leases, which are due. Each begins when one of the others has ended: after an outage all leases of
        the process are among them."""

    def start(self, lease: Lease, duration: float) -> StopCallback:
        if not lease.kept:
            lease.kept, lease.duration = True, duration
            self._add(first_beat_time(lease), lease)
        return lease.end

    def stop(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # after a fork the lock may be held for ever, by a thread that exists only in the parent
            return
        with self._changed:
            self._stopped = True
            self._changed.notify()
            thread, beaters = self._thread, list(self._beat_threads)
        for _ in beaters:
            self._ready.put(None)
        for each in (thread, *beaters):
            if each is not None:
                each.join(timeout=IDLE_SECONDS)
        self._reset()

    def _add(self, due: float, lease: Lease) -> None:
        if self._pid != os.getpid():
            self._reset()  # after a fork the threads exist only in the parent
        with self._changed:
            if self._thread is None:
                watcher = threading.Thread(target=self._watch, name="retrysafe-heartbeat", daemon=True)
                watcher.start()  # if no thread can be started, this call fails and the next one tries again
                self._thread = watcher
            self._due.add(due, lease)
            if due < self._wakes_at:
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                now = clock()
                due = self._due.next_due()
                self._wakes_at = min(now + IDLE_SECONDS if due is None else due, now + IDLE_SECONDS)
                if self._stopped:
                    return
                if self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                    continue
                lease = self._due.pop_due(now)
                if lease is not None:
                    self._dispatch(lease)

    def _dispatch(self, lease: Lease) -> None:
        """Give the lease to an idle thread, or to a new one if none is idle and the limit allows it. A lease whose last
        beat failed waits while enough of them are under way: if their rows are locked, each of them waits again."""
        if lease.failing:
            if len(self._failing) >= MAX_FAILING_BEATS:
                self._held_back.append(lease)
                return
            self._failing.add(lease)
        if self._idle_threads <= self._ready.qsize() and len(self._beat_threads) < MAX_BEAT_THREADS:
            beater = threading.Thread(target=self._run_beats, name="retrysafe-beat", daemon=True)
            try:
                beater.start()
            except RuntimeError:  # no thread can be started just now, and the watcher must survive that
                if not self._beat_threads:
                    self._failing.discard(lease)
                    self._due.add(clock() + RETRY_SECONDS, lease)
                    return
            else:
                self._beat_threads.add(beater)
        self._ready.put(lease)

    def _run_beats(self) -> None:
        while True:
            lease = self._next_ready()
            if lease is not None:
                self._renew_lease(lease)
                if self._failing:
                    self._begin_held_back(lease)
                continue
            with self._changed:
                if self._ready.empty() or self._stopped:  # no lease was given to this thread since it woke
                    self._beat_threads.discard(threading.current_thread())
                    return

    def _begin_held_back(self, ended: Lease) -> None:
        """The beat of a lease has ended. If its last one had failed, the next lease of those begins."""
        with self._changed:
            self._failing.discard(ended)
            while self._held_back and len(self._failing) < MAX_FAILING_BEATS:
                self._dispatch(self._held_back.popleft())

    def _next_ready(self) -> Lease | None:
        with self._changed:
            self._idle_threads += 1
        lease = None
        with suppress(queue.Empty):
            lease = self._ready.get(timeout=IDLE_SECONDS)
        with self._changed:
            self._idle_threads -= 1
        return lease

    def _renew_lease(self, lease: Lease) -> None:
        if lease.done:
            return None
        sent_at, step = clock(), lease.duration / BEATS_PER_LEASE
        try:
            renewed = self._store().execute(lease.build_renewal())
        except Exception:
            # Not only StoreError: this thread renews for every call of the process and must survive a broken store.
            lease.failing = True
            self._on_beat("renew_failed", lease.id)
            step /= BEATS_PER_LEASE  # two beats are left before the lease ends: send the next one early
        else:
            if not renewed:
                return mark_lost(lease, self._on_beat)
            lease.record_renewal(sent_at)
            self._on_beat("renewed", lease.id)
        if not lease.done:
            self._add(clock() + step, lease)
        return None


def first_beat_time(lease: Lease) -> float:
    """When the first renewal is due: a third of the lease after the claim was sent."""
    return lease.until - lease.duration * (1 - 1 / BEATS_PER_LEASE)


def mark_lost(lease: Lease, on_beat: OnBeat) -> None:
    if not lease.done and not lease.settling:
        lease.lost = True
        on_beat("lease_lost", lease.id)
