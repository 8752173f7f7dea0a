"""The completer: goes on with operations that nobody is going on with.

It is an ordinary claimant: same claim, same fence, same lease (I21). Two completers that see the same record race
for it like anybody else, and one of them wins.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import InProgress, OutcomeUnknown, RetrySafeError
from retrysafe.operations.operation import Operation
from retrysafe.operations.submission import is_submitted
from retrysafe.worker.flows import CallUserFunction, ShouldStop, WorkerFlow, never_stop, run

_log = logging.getLogger("retrysafe.worker")

GRACE_SECONDS = 300.0
"""Seconds an abandoned operation is left to its client's own retry before the completer takes it."""

MAX_BACKOFF_SECONDS = 300.0
PAGE_ROWS = 100

NO_RECORD_ID = bytes(32)
"""No record's id: looking for it tells the store's time and costs nothing more. Counting would read every record."""

_log = logging.getLogger("retrysafe.worker")


def compute_backoff(attempt: int) -> float:
    """Seconds before the next attempt: 2, 4, 8 … up to the limit."""
    return float(min(2.0 ** min(attempt, 20), MAX_BACKOFF_SECONDS))


class CompleterCounts(NamedTuple):
    """What one round did."""

    finished: int
    later: int
    """Tried, and not finished: they are released at their point, and tried again."""
    unknown: int
    """Of operations this worker's code does not know: left alone."""
    dead: int = 0
    """Given to a person: its outcome is not known, its attempts are used up, or each died without a word."""
    waiting: int = 0
    """Of operations this worker knows, and cannot go on with: an event of an inbox whose handler is gone."""
    unreadable: int = 0
    """Damaged, or sealed with a key that is not in the ring: shown and left alone, and the others go on."""


class Completer:
    """`grace`: seconds a lapsed operation is left to its client. `backoff`: seconds after a release, by attempt."""

    def __init__(
        self, safe: RetrySafe, grace: float = GRACE_SECONDS, backoff: Callable[[int], float] = compute_backoff
    ) -> None:
        self._safe = safe
        self._grace = duration_to_micros(grace)
        self._backoff = backoff
        self.due_in: float | None = None
        """Seconds after the last round until something it saw is due; None: it saw nothing that will be."""

    def run_once(self, stopping: ShouldStop = never_stop) -> CompleterCounts:
        """Every operation that is due, once. `stopping` is asked between two of them."""
        return run(self._safe, self.tick_flow(stopping))

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[CompleterCounts]:
        now = (yield Lookup(NO_RECORD_ID)).now
        self.due_in = None
        done = Counter[str]()
        for wanted in (
            List(self._safe.namespace, State.CLAIMED, lapsed=True, limit=PAGE_ROWS),
            List(self._safe.namespace, resting=True, limit=PAGE_ROWS),
        ):
            yield from self._resume_listed(wanted, now, done, stopping)
        return CompleterCounts(**{name: done[name] for name in CompleterCounts._fields})

    def _resume_listed(self, wanted: List, now: int, done: Counter[str], stopping: ShouldStop) -> WorkerFlow[None]:
        """Page by page. Operations started over HTTP carry their route's kind, so the kind does not tell them."""
        cursor = ""
        while not stopping():
            page = yield List(
                wanted.namespace,
                wanted.state,
                lapsed=wanted.lapsed,
                cursor=cursor,
                limit=PAGE_ROWS,
                resting=wanted.resting,
            )
            done["unreadable"] += log_unreadable(page.unreadable)
            # In any order: several workers that see the same list should not all reach for the same record.
            found = [record for record in page.records if is_unfinished(record)]
            random.shuffle(found)
            for record in found:
                if stopping():
                    return
                done[(yield from self._process_record(record, now))] += 1
            cursor = page.cursor
            if not cursor:
                return

    def _process_record(self, record: Record, now: int) -> WorkerFlow[str]:
        """What became of it: a field of Completed, or nothing."""
        operation = self._safe.operations.get(record.target)
        if operation is None:
            return "unknown"
        left = self._due_at(record) - now
        if left > 0:
            self._note_due(left / SECOND_MICROS)
            return ""
        why = operation.why_unable(record)
        if why:
            _log.warning("%s %s waits for other code: %s", record.target, record.id.hex()[:16], why)
            return "waiting"
        if record.state is State.CLAIMED and operation.is_exhausted(record):
            yield CallUserFunction(lambda: operation.give_up(record), operation.is_async)
            return "dead"
        return (yield from self._resume(operation, record))

    def _due_at(self, record: Record) -> int:
        """Lapsed: after the grace, for its client may retry. Released: after a pause that grows with each attempt."""
        if record.state is State.CLAIMED:
            patient = record.attempt == 1 and not is_submitted(record)
            return record.lease_until + (self._grace if patient else 0)
        return record.completed + round(self._backoff(record.attempt) * SECOND_MICROS)

    def _resume(self, operation: Operation, record: Record) -> WorkerFlow[str]:
        try:
            yield CallUserFunction(lambda: operation.resume(record, fresh=is_submitted(record)), operation.is_async)
        except InProgress:
            self._note_due(self._backoff(record.attempt + 1))
            return "later"  # another worker, or its client, was quicker
        except RetrySafeError as error:
            # Written down where it happened: later, dead, changed, or a store in trouble.
            cause = error.__cause__ or error
            _log.warning(
                "%s %s, attempt %d: not finished: %s (%s)",
                *(record.target, record.id.hex()[:16], record.attempt + 1, type(error).__name__, type(cause).__name__),
            )
            if isinstance(error, OutcomeUnknown):
                return "dead"  # nobody tries it again before a person has looked
            self._note_due(self._backoff(record.attempt + 1))
            return "later"
        return "finished"

    def _note_due(self, seconds: float) -> None:
        self.due_in = seconds if self.due_in is None else min(self.due_in, seconds)


def log_unreadable(unreadable: tuple[bytes, ...]) -> int:
    """Say which records cannot be read; how many."""
    if unreadable:
        shown = ", ".join(each.hex()[:16] for each in unreadable[:5])
        _log.error("%d records cannot be read, and are left alone: %s", len(unreadable), shown)
    return len(unreadable)


def is_unfinished(record: Record) -> bool:
    """Whether this is an operation that stopped on its way. Guards have no version in their target."""
    versioned = "@" in record.target
    return versioned and (record.on_lapse == "resume" if record.state is State.CLAIMED else record.point != "")
