"""Leases by when their next beat is due, for both colours. No clock and no I/O."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, Protocol, TypeVar

SWEEP_ENTRIES = 1_000
"""So many entries may be there for calls that are over."""


class Finishable(Protocol):
    """What the queue asks of a lease."""

    done: bool


L = TypeVar("L", bound=Finishable)


class DueQueue(Generic[L]):
    """A heap. Most calls are over long before their first beat; their entries are swept out by the thousand, so that
    what is kept stays in proportion to the calls that are under way."""

    def __init__(self) -> None:
        self._beats: list[tuple[float, int, L]] = []
        self._order = count()  # so that two leases of one moment are never compared
        self._sweep_at = SWEEP_ENTRIES

    def __len__(self) -> int:
        return len(self._beats)

    def add(self, due: float, lease: L) -> bool:
        """Whether it is now before all others."""
        if len(self._beats) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._beats, (due, next(self._order), lease))
        return self._beats[0][2] is lease

    def next_due(self) -> float | None:
        """When the next beat is due; None if there is none to come."""
        while self._beats and self._beats[0][2].done:
            heapq.heappop(self._beats)
        return self._beats[0][0] if self._beats else None

    def pop_due(self, now: float) -> L | None:
        """A lease whose beat is due by now."""
        due = self.next_due()
        return heapq.heappop(self._beats)[2] if due is not None and due <= now else None

    def _sweep(self) -> None:
        self._beats = [beat for beat in self._beats if not beat[2].done]
        heapq.heapify(self._beats)
        self._sweep_at = max(SWEEP_ENTRIES, 2 * len(self._beats))
