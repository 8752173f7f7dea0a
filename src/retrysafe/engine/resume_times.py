"""When a worker takes up a run that has no owner. Pure. The worker goes by it; `keys why` and the console tell it."""

from __future__ import annotations

from collections.abc import Callable

from retrysafe.core.moves import is_submitted
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS

GRACE_SECONDS = 300.0
"""How long an abandoned operation is left to its client's own retry before the completer takes it."""

MAX_BACKOFF_SECONDS = 300.0


def compute_backoff(attempt: int) -> float:
    """Seconds before the next attempt: 2, 4, 8 … up to MAX_BACKOFF_SECONDS."""
    return float(min(2.0 ** min(attempt, 20), MAX_BACKOFF_SECONDS))


def compute_due(
    record: Record,
    attempt: int,
    grace: int = round(GRACE_SECONDS * SECOND_MICROS),
    backoff: Callable[[int], float] = compute_backoff,
) -> int:
    """A lapsed record is due after the grace, because its client may retry. A released one is due after a pause that
    grows with each attempt."""
    if record.state is State.CLAIMED:
        has_grace = record.attempt == 1 and not is_submitted(record)
        return record.lease_until + (grace if has_grace else 0)
    return record.completed + round(backoff(attempt) * SECOND_MICROS)
