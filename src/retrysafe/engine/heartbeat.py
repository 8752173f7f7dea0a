"""Keeping a lease alive while the user's function runs, and telling it when that failed.

One thread watches over all calls of a process, one timer over all calls of an event loop (aheartbeat.py). A call that
is over before its first beat costs a heap push. The beats themselves are sent by a few other threads: one that waits
for a row somebody else has locked holds up nobody's beat but its own.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token

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
"""Seconds until a beat that found no thread is tried again."""
MAX_BEAT_THREADS = 8
"""Threads that send beats at once, at most. Nearly always one is enough; the others are for beats that have to wait."""

OnBeat = Callable[[str, bytes], None]
"""Called with `lease_lost` or `renew_failed`, and the record's id."""

StopCallback = Callable[[], None]
"""Ends what was started."""


class Lease:
    """What a running function can ask about its right to run.

    `until` is on this process's clock (engine/clock.py), counted from before the claim or renewal was asked for: until
    then nobody else can have been told that it is theirs.
    """

    __slots__ = ("_attempt", "_key", "done", "duration", "fence", "id", "kept", "lost", "settling", "until")

    def __init__(self, record_id: bytes, key: str, fence: Fence, until: float) -> None:
        self.id = record_id
        self.fence = fence
        self.kept = False
        self.lost = False
        self.settling = False
        """Whether its end is being written down: from then on that write tells whether it was lost, not a beat."""
        self.done = False
        self.until = until
        self.duration = 0.0
        """Seconds a renewal asks for; set when it begins to be kept."""
        self._key = key
        self._attempt = fence.attempt

    def keep_for(self, duration: float) -> bool:
        """Whether a heartbeat is to begin: not where one keeps it already."""
        begins, self.kept = not self.kept, True
        if begins:
            self.duration = duration
        return begins

    def end(self) -> None:
        """The work is over: no beat is needed any more."""
        self.done = True

    def build_renewal(self) -> Renew:
        return Renew(self.id, self.fence, duration_to_micros(self.duration))

    def record_renewal(self, asked: float) -> None:
        """The store said yes to a renewal that was asked for at `asked`."""
        self.until = max(self.until, asked + self.duration)

    def fits(self, seconds: float) -> bool:
        """Whether something that takes so long would be over before the lease is."""
        return not self.lost and clock() + seconds < self.until

    def check(self) -> None:
        """Raise LeaseLost if another attempt has taken over, or may have: call it before each irrevocable act.

        "May have" matters: a process that was paused for longer than its lease asks here before its heartbeat
        has had a chance to find out, and one that is cut off from the store never finds out at all.
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
    """Make it the current lease. A context that ends with the work, such as a task's, need not disown it."""
    return _current.set(lease)


def disown_lease(token: Token[Lease | None]) -> None:
    try:
        _current.reset(token)
    except ValueError:  # it ends in another context than it began in: an async view under WSGI
        _current.set(None)


@contextmanager
def stop_on_exit(stop: StopCallback) -> Iterator[None]:
    """For the time of a block: what was started is ended with it."""
    try:
        yield
    finally:
        stop()


class Heartbeat:
    """A thread that watches over leases, and others that renew them as they come due."""

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

    def start(self, lease: Lease, duration: float) -> StopCallback:
        if lease.keep_for(duration):
            self._add(first_beat_time(lease), lease)
        return lease.end

    def stop(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # the lock may be held for ever by a thread that did not come along through the fork
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
            self._reset()  # the threads did not come along through the fork
        with self._changed:
            if self._thread is None:
                watcher = threading.Thread(target=self._watch, name="retrysafe-heartbeat", daemon=True)
                watcher.start()  # if there is no thread to be had this call fails, and the next one tries again
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
        """To whoever is free; to a new thread if nobody is and there may be another."""
        if self._idle_threads <= self._ready.qsize() and len(self._beat_threads) < MAX_BEAT_THREADS:
            beater = threading.Thread(target=self._run_beats, name="retrysafe-beat", daemon=True)
            try:
                beater.start()
            except RuntimeError:  # no thread to be had just now: this one must not take the watcher with it
                if not self._beat_threads:
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
                continue
            with self._changed:
                if self._ready.empty() or self._stopped:  # nobody counted on this thread between its waking and now
                    self._beat_threads.discard(threading.current_thread())
                    return

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
        asked, step = clock(), lease.duration / BEATS_PER_LEASE
        try:
            renewed = self._store().execute(lease.build_renewal())
        except Exception:
            # Not only StoreError: this thread beats for every call of the process, and must survive a broken store.
            self._on_beat("renew_failed", lease.id)
            step /= BEATS_PER_LEASE  # there are two more chances: use them early
        else:
            if not renewed:
                return mark_lost(lease, self._on_beat)
            lease.record_renewal(asked)
        if not lease.done:
            self._add(clock() + step, lease)
        return None


def first_beat_time(lease: Lease) -> float:
    """A third of a lease after it was asked for."""
    return lease.until - lease.duration * (1 - 1 / BEATS_PER_LEASE)


def mark_lost(lease: Lease, on_beat: OnBeat) -> None:
    if not lease.done and not lease.settling:
        lease.lost = True
        on_beat("lease_lost", lease.id)
