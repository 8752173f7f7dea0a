"""A heap of leases, ordered by when their next heartbeat is due. Used by both heartbeats; no clock and no I/O."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, Protocol, TypeVar

SWEEP_ENTRIES = 1_000
"""How many entries are kept before those of ended calls are swept out."""


class Finishable(Protocol):
    """What the queue needs of a lease."""

    done: bool


L = TypeVar("L", bound=Finishable)


class DueQueue(Generic[L]):
    """A heap. Most calls end long before their first beat. Their entries are swept out by the thousand, so that the
    size stays in proportion to the calls that are running."""

    def __init__(self) -> None:
        self._beats: list[tuple[float, int, L]] = []
        self._order = count()  # so that two leases of one moment are never compared
        self._sweep_at = SWEEP_ENTRIES

    def __len__(self) -> int:
        return len(self._beats)

    def add(self, due: float, lease: L) -> bool:
        """Add a lease. True if it is now the first one due."""
        if len(self._beats) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._beats, (due, next(self._order), lease))
        return self._beats[0][2] is lease

    def next_due(self) -> float | None:
        """When the next beat is due; None if there is none."""
        while self._beats and self._beats[0][2].done:
            heapq.heappop(self._beats)
        return self._beats[0][0] if self._beats else None

    def pop_due(self, now: float) -> L | None:
        """Remove and return a lease whose beat is due; None if there is none."""
        due = self.next_due()
        return heapq.heappop(self._beats)[2] if due is not None and due <= now else None

    def _sweep(self) -> None:
        self._beats = [beat for beat in self._beats if not beat[2].done]
        heapq.heapify(self._beats)
        self._sweep_at = max(SWEEP_ENTRIES, 2 * len(self._beats))
