"""The completer: goes on with operations that nobody is going on with.

It is an ordinary claimant: same claim, same fence, same lease (I21). Two completers that see the same record race
for it like anybody else, and one of them wins.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from retrysafe.core.ops import List, Stats
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND, micros
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import RetrySafeError
from retrysafe.operations.accepting import submitted
from retrysafe.operations.operation import Operation

_log = logging.getLogger("retrysafe.worker")

GRACE = 300.0
"""Seconds an abandoned operation is left to its client's own retry before the completer takes it."""

BACKOFF_LIMIT = 300.0
PAGE = 100


def doubling(attempt: int) -> float:
    """Seconds before the next attempt: 2, 4, 8 … up to the limit."""
    return float(min(2.0 ** min(attempt, 20), BACKOFF_LIMIT))


class Completed(NamedTuple):
    """What one round did."""

    finished: int
    later: int
    """Tried, and not finished: they are released at their point, or given to a person."""
    unknown: int
    """Of operations this worker's code does not know: left alone."""
    dead: int = 0
    """Given to a person: every attempt died without a word."""


class Completer:
    """`grace`: seconds a lapsed operation is left to its client. `backoff`: seconds after a release, by attempt."""

    def __init__(self, safe: RetrySafe, grace: float = GRACE, backoff: Callable[[int], float] = doubling) -> None:
        self._safe = safe
        self._grace = micros(grace)
        self._backoff = backoff

    def run_once(self, stopping: Callable[[], bool] = lambda: False) -> Completed:
        """Every operation that is due, once. `stopping` is asked between two of them."""
        now = self._safe.execute(Stats()).now
        finished = later = unknown = dead = 0
        for record in self._abandoned():
            if stopping():
                break
            operation = self._safe.operations.get(record.target)
            if operation is None:
                unknown += 1
            elif not self._due(record, now):
                continue
            elif record.state is State.CLAIMED and operation.exhausted(record):
                self._wait(operation.give_up(record))
                dead += 1
            else:
                done = self._resume(operation, record)
                finished, later = finished + done, later + (not done)
        return Completed(finished, later, unknown, dead)

    def _due(self, record: Record, now: int) -> bool:
        """Lapsed: after the grace, for its client may retry. Released: after a pause that grows with each attempt."""
        if record.state is State.CLAIMED:
            patient = record.attempt == 1 and not submitted(record)
            return record.lease_until + (self._grace if patient else 0) <= now
        return record.completed + round(self._backoff(record.attempt) * SECOND) <= now

    def _abandoned(self) -> Iterator[Record]:
        """Lapsed, or released at a recovery point. Operations started over HTTP carry their route's kind."""
        for wanted in (List(lapsed=True, state=State.CLAIMED), List(state=State.RELEASED)):
            cursor = ""
            while True:
                page = self._safe.execute(List(state=wanted.state, lapsed=wanted.lapsed, cursor=cursor, limit=PAGE))
                # In any order: several workers that see the same list should not all reach for the same record.
                found = [record for record in page.records if unfinished(record)]
                random.shuffle(found)
                yield from found
                cursor = page.cursor
                if not cursor:
                    break

    def _resume(self, operation: Operation, record: Record) -> bool:
        try:
            self._wait(operation.resume(record, fresh=submitted(record)))
        except RetrySafeError as error:
            # Written down where it happened: later, uncertain, changed, or a store in trouble.
            cause = error.__cause__ or error
            _log.warning(
                "%s %s, attempt %d: not finished: %s (%s)",
                *(record.target, record.id.hex()[:16], record.attempt + 1, type(error).__name__, type(cause).__name__),
            )
            return False
        return True

    @staticmethod
    def _wait(made: Any) -> None:
        if inspect.isawaitable(made):
            wait_for(made)


def unfinished(record: Record) -> bool:
    """Whether this is an operation that stopped on its way. Guards have no version in their target."""
    versioned = "@" in record.target
    return versioned and (record.on_lapse == "resume" if record.state is State.CLAIMED else record.point != "")
