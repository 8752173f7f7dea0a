"""Leases, ordered by when their next heartbeat is due. Used by both heartbeats; no clock and no I/O."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import Generic, Protocol, TypeVar

SWEEP_ENTRIES = 1_000
"""How many entries are kept before those of ended calls are swept out."""


class Finishable(Protocol):
    """What the queue needs of a lease."""

    done: bool
    due: float
    """When its next heartbeat is due. The queue sets it."""


L = TypeVar("L", bound=Finishable)


class DueQueue(Generic[L]):
    """A row of leases that were added in the order in which they are due, as nearly all are, and a heap of the others.

    Most calls end long before their first beat, and one at the row's head is dropped when the next is added. Those
    behind a call that takes long are swept out by the thousand, so that the size stays in proportion to the calls that
    are running."""

    def __init__(self) -> None:
        self._row: deque[L] = deque()
        self._heap: list[tuple[float, int, L]] = []
        self._order = count()  # so that two leases of one moment are never compared
        self._sweep_at = SWEEP_ENTRIES

    def __len__(self) -> int:
        return len(self._row) + len(self._heap)

    def add(self, due: float, lease: L) -> None:
        row, lease.due = self._row, due
        while row and row[0].done:
            row.popleft()
        if len(row) + len(self._heap) >= self._sweep_at:
            self._sweep()
            row = self._row
        if row and due < row[-1].due:
            heapq.heappush(self._heap, (due, next(self._order), lease))
        else:
            row.append(lease)

    def next_due(self) -> float | None:
        """When the next beat is due; None if there is none."""
        row, heap = self._row, self._heap
        while row and row[0].done:
            row.popleft()
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        if row and heap:
            return min(row[0].due, heap[0][0])
        return row[0].due if row else heap[0][0] if heap else None

    def pop_due(self, now: float) -> L | None:
        """Remove and return a lease whose beat is due; None if there is none."""
        due = self.next_due()
        if due is None or due > now:
            return None
        if self._row and self._row[0].due == due:
            return self._row.popleft()
        return heapq.heappop(self._heap)[2]

    def _sweep(self) -> None:
        self._row = deque(lease for lease in self._row if not lease.done)
        self._heap = [beat for beat in self._heap if not beat[2].done]
        heapq.heapify(self._heap)
        self._sweep_at = max(SWEEP_ENTRIES, 2 * len(self))
