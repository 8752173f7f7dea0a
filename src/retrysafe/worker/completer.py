"""The completer: goes on with operations that nobody is going on with.

It is an ordinary claimant: same claim, same fence, same lease (I21). Two completers that see the same record race
for it like anybody else, and one of them wins.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import NamedTuple

from retrysafe.core.ops import List, Stats
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND, micros
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotNow, RetrySafeError
from retrysafe.operations.operation import Operation

GRACE = 300.0
"""Seconds an abandoned operation is left to its client's own retry before the completer takes it."""

BACKOFF_LIMIT = 300.0
PAGE = 100


class Completed(NamedTuple):
    """What one round did."""

    finished: int
    later: int
    """Tried, and not finished: they are released at their point, or given to a person."""
    unknown: int
    """Of operations this worker's code does not know: left alone."""


class Completer:
    def __init__(self, safe: RetrySafe, grace: float = GRACE) -> None:
        self._safe = safe
        self._grace = micros(grace)

    def run_once(self) -> Completed:
        """Every operation that is due, once."""
        now = self._safe.execute(Stats()).now
        finished = later = unknown = 0
        for record in self._abandoned():
            operation = self._safe.operations.get(record.target)
            if operation is None:
                unknown += 1
            elif due(record, now, self._grace):
                done = self._resume(operation, record)
                finished, later = finished + done, later + (not done)
        return Completed(finished, later, unknown)

    def _abandoned(self) -> Iterator[Record]:
        """Lapsed, or released at a recovery point. Operations started over HTTP carry their route's kind."""
        for wanted in (List(lapsed=True, state=State.CLAIMED), List(state=State.RELEASED)):
            cursor = ""
            while True:
                page = self._safe.execute(List(state=wanted.state, lapsed=wanted.lapsed, cursor=cursor, limit=PAGE))
                yield from (record for record in page.records if unfinished(record))
                cursor = page.cursor
                if not cursor:
                    break

    def _resume(self, operation: Operation, record: Record) -> bool:
        try:
            ended = operation.resume(record)
            if inspect.isawaitable(ended):
                wait_for(ended)
        except NotNow:
            return False
        except RetrySafeError:
            return False  # written down where it happened: uncertain, changed, or a store in trouble
        return True


def unfinished(record: Record) -> bool:
    """Whether this is an operation that stopped on its way. Guards have no version in their target."""
    versioned = "@" in record.target
    return versioned and (record.on_lapse == "resume" if record.state is State.CLAIMED else record.point != "")


def due(record: Record, now: int, grace: int) -> bool:
    """Lapsed: after the grace, for its client may retry. Released: after a pause that doubles with each attempt."""
    if record.state is State.CLAIMED:
        return record.lease_until + (grace if record.attempt == 1 and record.lease_until > record.started else 0) <= now
    pause = min(2.0 ** min(record.attempt, 20), BACKOFF_LIMIT)
    return record.completed + round(pause * SECOND) <= now
