"""The heartbeat of event loops.

A file of its own, loaded when the first flow runs on a loop: sync programs need not import asyncio.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import count

from retrysafe.core.ops import Renew
from retrysafe.core.times import micros
from retrysafe.engine.heartbeat import BEATS_PER_LEASE, Lease, OnBeat, Stop
from retrysafe.stores.base import AsyncStore

SWEEP = 1_000
"""So many entries may be there for calls that are over."""


class AsyncHeartbeat:
    """One timer for all calls of an event loop; a renewal runs as a task of that loop."""

    def __init__(self, store: AsyncStore, on_beat: OnBeat) -> None:
        self._store = store
        self._on_beat = on_beat
        self._beats: _Beats | None = None
        """Of the loop that asked last: nearly every process has one."""
        self._others: dict[asyncio.AbstractEventLoop, _Beats] = {}

    def start(self, lease: Lease, duration: float) -> Stop:
        beats = self._beats
        if beats is None or beats.loop is not asyncio.get_running_loop():
            beats = self._beats = self._of(asyncio.get_running_loop())
        beats.add(lease, duration)
        return lease.end

    def _of(self, loop: asyncio.AbstractEventLoop) -> _Beats:
        if loop not in self._others:
            self._others = {known: beats for known, beats in self._others.items() if not known.is_closed()}
            self._others[loop] = _Beats(loop, self._store, self._on_beat)
        return self._others[loop]


class _Beats:
    """The leases of one event loop, by when they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: AsyncStore, on_beat: OnBeat) -> None:
        self.loop = loop
        self._store = store
        self._on_beat = on_beat
        self._due: list[tuple[float, int, Lease, float]] = []
        self._order = count()
        self._sweep_at = SWEEP
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, lease: Lease, duration: float) -> None:
        now = time.monotonic()
        lease.until = now + duration
        self._push(now + duration / BEATS_PER_LEASE, lease, duration)

    def _push(self, due: float, lease: Lease, duration: float) -> None:
        if len(self._due) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._due, (due, next(self._order), lease, duration))
        if self._timer is None:
            self._wake_at(due)
        elif self._due[0][2] is lease:  # before all others
            self._timer.cancel()
            self._wake_at(due)

    def _wake_at(self, due: float) -> None:
        self._timer = self.loop.call_later(due - time.monotonic(), self._fire)

    def _sweep(self) -> None:
        """Forget those that are over. Most are long before their first beat."""
        self._due = [entry for entry in self._due if not entry[2].done]
        heapq.heapify(self._due)
        self._sweep_at = max(SWEEP, 2 * len(self._due))

    def _fire(self) -> None:
        now, self._timer = time.monotonic(), None
        while self._due and (self._due[0][2].done or self._due[0][0] <= now):
            _, _, lease, duration = heapq.heappop(self._due)
            if not lease.done:
                task = self.loop.create_task(self._beat(lease, duration))
                self._tasks.add(task)  # a task nobody holds may vanish
                task.add_done_callback(self._tasks.discard)
        if self._due:
            self._wake_at(self._due[0][0])

    async def _beat(self, lease: Lease, duration: float) -> None:
        step = duration / BEATS_PER_LEASE
        asked = time.monotonic()
        try:
            renewed = await self._store.execute(Renew(lease.id, lease.fence, micros(duration)))
        except Exception:
            self._on_beat("renew_failed", lease.id)
            step /= BEATS_PER_LEASE
        else:
            if renewed:
                lease.until = asked + duration
            elif not lease.done:
                lease.lost = True
                self._on_beat("lease_lost", lease.id)
        if not lease.done and not lease.lost:
            self._push(time.monotonic() + step, lease, duration)
