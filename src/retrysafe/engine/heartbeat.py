"""Keeping a lease alive while the user's function runs, and telling it when that failed.

One thread serves all calls of a process, one timer all calls of an event loop (aheartbeat.py). A call that is over
before its first beat costs a heap push.
"""

from __future__ import annotations

import heapq
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from itertools import count

from retrysafe.core.ops import Renew
from retrysafe.core.records import Fence
from retrysafe.core.times import micros
from retrysafe.errors import LeaseLost
from retrysafe.stores.base import Store

BEATS_PER_LEASE = 3
IDLE = 5.0

OnBeat = Callable[[str, bytes], None]
"""Called with `lease_lost` or `renew_failed`, and the record's id."""

Stop = Callable[[], None]
"""Ends what was started."""


class Lease:
    """What a running function can ask about its right to run."""

    __slots__ = ("_attempt", "_key", "done", "fence", "id", "lost", "until")

    def __init__(self, record_id: bytes, key: str, fence: Fence) -> None:
        self.id = record_id
        self.fence = fence
        self.lost = False
        self.done = False
        self.until = math.inf
        """On this process's monotonic clock: until then nobody else can have been told that it is theirs."""
        self._key = key
        self._attempt = fence.attempt

    def end(self) -> None:
        """The work is over: no beat is needed any more."""
        self.done = True

    def check(self) -> None:
        """Raise LeaseLost if another attempt has taken over, or may have: call it before each irrevocable act.

        "May have" matters: a process that was paused for longer than its lease asks here before its heartbeat
        has had a chance to find out, and one that is cut off from the store never finds out at all.
        """
        if self.lost or time.monotonic() >= self.until:
            raise LeaseLost(self._key, self._attempt)


_current: ContextVar[Lease | None] = ContextVar("retrysafe_lease", default=None)


def current_lease() -> Lease | None:
    """The lease of the guarded function that is running here, or None."""
    return _current.get()


@contextmanager
def held_lease(lease: Lease) -> Iterator[None]:
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
def until_over(stop: Stop) -> Iterator[None]:
    """For the time of a block: what was started is ended with it."""
    try:
        yield
    finally:
        stop()


class Heartbeat:
    """A thread that renews leases as they come due."""

    def __init__(self, store: Callable[[], Store], on_beat: OnBeat) -> None:
        self._store = store
        self._on_beat = on_beat
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._due: list[tuple[float, int, Lease, float]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self, lease: Lease, duration: float) -> Stop:
        now = time.monotonic()
        lease.until = now + duration
        self._add(now + duration / BEATS_PER_LEASE, lease, duration)
        return lease.end

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(timeout=IDLE)
        self._reset()

    def _add(self, due: float, lease: Lease, duration: float) -> None:
        if self._pid != os.getpid():
            self._reset()  # the thread did not come along through the fork
        with self._changed:
            heapq.heappush(self._due, (due, next(self._order), lease, duration))
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="retrysafe-heartbeat", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                self._changed.notify()

    def _loop(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                while self._due and self._due[0][2].done:
                    heapq.heappop(self._due)
                self._wakes_at = min(self._due[0][0] if self._due else now + IDLE, now + IDLE)
                if self._stopped:
                    return
                if self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                    continue
                _, _, lease, duration = heapq.heappop(self._due)
            self._beat(lease, duration)

    def _beat(self, lease: Lease, duration: float) -> None:
        step = duration / BEATS_PER_LEASE
        asked = time.monotonic()
        try:
            renewed = self._store().execute(Renew(lease.id, lease.fence, micros(duration)))
        except Exception:
            # Not only StoreError: this thread beats for every call of the process, and must survive a broken store.
            self._on_beat("renew_failed", lease.id)
            step /= BEATS_PER_LEASE  # there are two more chances: use them early
        else:
            if not renewed:
                return self._lose(lease)
            lease.until = asked + duration
        if not lease.done:
            self._add(time.monotonic() + step, lease, duration)
        return None

    def _lose(self, lease: Lease) -> None:
        if not lease.done:
            lease.lost = True
            self._on_beat("lease_lost", lease.id)
