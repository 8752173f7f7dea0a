"""The heartbeat for event loops: the twin of heartbeat.py.

A file of its own, loaded when the first flow runs on a loop: sync programs need not import asyncio.
"""

from __future__ import annotations

import asyncio

from retrysafe.engine.clock import clock
from retrysafe.engine.due_queue import DueQueue
from retrysafe.engine.heartbeat import BEATS_PER_LEASE, Lease, OnBeat, StopCallback, first_beat_time, mark_lost
from retrysafe.stores.base import AsyncStore


class AsyncHeartbeat:
    """One timer for all calls of an event loop; a renewal runs as a task of that loop."""

    def __init__(self, store: AsyncStore, on_beat: OnBeat) -> None:
        self._store = store
        self._on_beat = on_beat
        self._beats: _LoopBeats | None = None
        """The beats of the loop that asked last. Nearly every process has one loop."""
        self._others: dict[asyncio.AbstractEventLoop, _LoopBeats] = {}

    def start(self, lease: Lease, duration: float) -> StopCallback:
        beats = self._beats
        if beats is None or beats.loop is not asyncio.get_running_loop():
            beats = self._beats = self._beats_for(asyncio.get_running_loop())
        if not lease.kept:
            lease.kept, lease.duration = True, duration
            beats.push(first_beat_time(lease), lease)
        return lease.end

    def _beats_for(self, loop: asyncio.AbstractEventLoop) -> _LoopBeats:
        if loop not in self._others:
            self._others = {known: beats for known, beats in self._others.items() if not known.is_closed()}
            self._others[loop] = _LoopBeats(loop, self._store, self._on_beat)
        return self._others[loop]


class _LoopBeats:
    """The leases of one event loop, ordered by when they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: AsyncStore, on_beat: OnBeat) -> None:
        self.loop = loop
        self._store = store
        self._on_beat = on_beat
        self._due: DueQueue[Lease] = DueQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def push(self, due: float, lease: Lease) -> None:
        first = self._due.add(due, lease)
        if self._timer is None:
            self._wake_at(due)
        elif first:
            self._timer.cancel()
            self._wake_at(due)

    def _wake_at(self, due: float) -> None:
        self._timer = self.loop.call_later(due - clock(), self._start_due_beats)

    def _start_due_beats(self) -> None:
        now, self._timer = clock(), None
        while (lease := self._due.pop_due(now)) is not None:
            task = self.loop.create_task(self._renew_lease(lease))
            self._tasks.add(task)  # asyncio keeps only a weak reference
            task.add_done_callback(self._tasks.discard)
        due = self._due.next_due()
        if due is not None:
            self._wake_at(due)

    async def _renew_lease(self, lease: Lease) -> None:
        sent_at, step = clock(), lease.duration / BEATS_PER_LEASE
        try:
            renewed = await self._store.execute(lease.build_renewal())
        except Exception:
            lease.failing = True
            self._on_beat("renew_failed", lease.id)
            step /= BEATS_PER_LEASE
        else:
            if not renewed:
                return mark_lost(lease, self._on_beat)
            lease.record_renewal(sent_at)
            self._on_beat("renewed", lease.id)
        if not lease.done:
            self.push(clock() + step, lease)
        return None
