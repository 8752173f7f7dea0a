"""The completer: resumes operations that have no owner.

It claims a record like any other owner: same claim, same fencing token, same lease (I21). Two completers that see the
same record race for it, and one of them wins.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from retrysafe.core.moves import is_submitted
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine.resume_times import GRACE_SECONDS, compute_backoff, compute_due
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.why import was_refused_by_code
from retrysafe.errors import InProgress, OperationChanged, OutcomeUnknown, RetrySafeError
from retrysafe.operations.operation import Operation
from retrysafe.worker.flows import CallUserFunction, ShouldStop, WorkerFlow, never_stop, run

_log = logging.getLogger("retrysafe.worker")

PAGE_ROWS = 100

MAX_REFUSALS = 100_000
"""Runs whose refusals are counted. Beyond that the counts begin anew, and the pauses with them."""

NO_RECORD_ID = bytes(32)
"""The id of no record. Looking it up returns the store's time and costs nothing more; counting would read every record.
"""


class CompleterCounts(NamedTuple):
    """The records that one round processed, by outcome."""

    finished: int
    later: int
    """Tried and not finished: released at their recovery point, and tried again later."""
    unknown: int
    """Of operations that this worker's code does not declare: left alone."""
    dead: int = 0
    """Dead letters, for a person: the outcome is unknown, or the attempts are used up."""
    waiting: int = 0
    """Of operations that this worker declares and cannot continue, such as an inbox event whose handler is gone."""
    unreadable: int = 0
    """Damaged, or sealed with a key that is not in the ring: logged and left alone."""


class Completer:
    """`grace`: seconds for which a lapsed operation is left to its client. `backoff`: seconds after a release, by
    attempt."""

    def __init__(
        self, safe: RetrySafe, grace: float = GRACE_SECONDS, backoff: Callable[[int], float] = compute_backoff
    ) -> None:
        self._safe = safe
        self._grace = duration_to_micros(grace)
        self._backoff = backoff
        self._refusals = Counter[bytes]()
        """How often the code of this process refused each of the runs that it saw. Other processes do not know."""
        self.due_in: float | None = None
        """Seconds after the last round until a record that it saw is due. None: it saw none."""

    def run_once(self, stopping: ShouldStop = never_stop) -> CompleterCounts:
        """Resume every operation that is due, once. `stopping` is called between two of them."""
        return run(self._safe, self.tick_flow(stopping))

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[CompleterCounts]:
        now = (yield Lookup(NO_RECORD_ID)).now
        self.due_in = None
        counts = Counter[str]()
        for query in (
            List(self._safe.namespace, State.CLAIMED, lapsed=True, limit=PAGE_ROWS),
            List(self._safe.namespace, resting=True, limit=PAGE_ROWS),
        ):
            yield from self._resume_listed(query, now, counts, stopping)
        return CompleterCounts(**{name: counts[name] for name in CompleterCounts._fields})

    def _resume_listed(self, query: List, now: int, counts: Counter[str], stopping: ShouldStop) -> WorkerFlow[None]:
        """Page by page. The query has no kind: operations started over HTTP have the kind of their route."""
        cursor = ""
        while not stopping():
            page = yield List(
                query.namespace,
                query.state,
                lapsed=query.lapsed,
                cursor=cursor,
                limit=PAGE_ROWS,
                resting=query.resting,
            )
            counts["unreadable"] += log_unreadable(page.unreadable)
            # In random order, so that several workers that see the same list do not all claim the same record.
            found = [record for record in page.records if is_unfinished(record)]
            random.shuffle(found)
            for record in found:
                if stopping():
                    return
                counts[(yield from self._process_record(record, now))] += 1
            cursor = page.cursor
            if not cursor:
                return

    def _process_record(self, record: Record, now: int) -> WorkerFlow[str]:
        """Process one record. Returns the field of CompleterCounts to increase, or an empty text if it is not due."""
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
        """If code refused a run, the pause grows only with the refusals by this code: clients that reach only code that
        refuses it would keep code that fits from it."""
        refused = was_refused_by_code(record)
        attempt = 1 + self._refusals[record.id] if refused else record.attempt
        return compute_due(record, attempt, self._grace, self._backoff)

    def _resume(self, operation: Operation, record: Record) -> WorkerFlow[str]:
        try:
            yield CallUserFunction(lambda: operation.resume(record, fresh=is_submitted(record)), operation.is_async)
        except InProgress:
            self._note_due(self._backoff(record.attempt + 1))
            return "later"  # another worker, or the client, has claimed it
        except RetrySafeError as error:
            # The attempt has stored its own outcome, if the store could be reached.
            cause = error.__cause__ or error
            _log.warning(
                "%s %s, attempt %d: not finished: %s (%s)",
                *(record.target, record.id.hex()[:16], record.attempt + 1, type(error).__name__, type(cause).__name__),
            )
            if isinstance(error, OutcomeUnknown):
                return "dead"  # not tried again before an operator has looked
            if isinstance(error, OperationChanged):
                self._note_refusal(record.id)
                return "later"
            self._note_due(self._backoff(record.attempt + 1))
            return "later"
        return "finished"

    def _note_refusal(self, record_id: bytes) -> None:
        if len(self._refusals) >= MAX_REFUSALS:
            self._refusals.clear()
        self._refusals[record_id] += 1
        self._note_due(self._backoff(1 + self._refusals[record_id]))

    def _note_due(self, seconds: float) -> None:
        self.due_in = seconds if self.due_in is None else min(self.due_in, seconds)


def log_unreadable(unreadable: tuple[bytes, ...]) -> int:
    """Log which records cannot be read. Returns their number."""
    if unreadable:
        shown = ", ".join(each.hex()[:16] for each in unreadable[:5])
        _log.error("%d records cannot be read, and are left alone: %s", len(unreadable), shown)
    return len(unreadable)


def is_unfinished(record: Record) -> bool:
    """True if this is an operation that has not ended. The target of an operation has a version (`name@1`); the target
    of a guard has none."""
    versioned = "@" in record.target
    return versioned and (record.on_lapse == "resume" if record.state is State.CLAIMED else record.point != "")
