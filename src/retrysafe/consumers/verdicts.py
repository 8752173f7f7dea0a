"""What becomes of a message: it is done, it comes again later, or it goes to the dead letters. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from retrysafe.errors import (
    AnswerGone,
    CorruptRecord,
    FingerprintMismatch,
    InProgress,
    KeyProblem,
    LeaseLost,
    NotNow,
    OutcomeUnknown,
    RetrySafeError,
    StoreError,
)


@dataclass(frozen=True, slots=True)
class Done:
    """Handled and committed, now or before (`replayed`): acknowledge it."""

    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Later:
    """Not now: let the broker bring it again in `seconds`. `failed`: because its handler failed."""

    seconds: float
    why: str
    failed: bool = False
    logged: str = field(default="", compare=False)
    """Why, for the log: no id, and no words of the handler (S28)."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Never by itself: put it aside for a person, then acknowledge it."""

    why: str
    """Whole, for the dead letter, which carries the message itself."""
    logged: str = field(default="", compare=False)


Verdict = Done | Later | Dead


class Reject(Exception):
    """Raised by a handler for a message that no retry will help: it goes to the dead letters at once."""


BUSY_PAUSE_SECONDS = 2.0
"""Seconds at most until a message that somebody else works on is looked at again: most are done by then."""

STORE_PAUSE_SECONDS = 5.0
"""Seconds until a store that could not be reached is asked again. Nothing was handled, and nothing is counted."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
"""Seconds after the first failure of a handler; doubled each time, up to the last."""


def compute_backoff(failures: int) -> float:
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 16), MAX_PAUSE_SECONDS))


def verdict_for_error(error: RetrySafeError) -> Verdict | None:
    """What an error of ours means for the message; None where the program is wrong and not the message."""
    if isinstance(error, AnswerGone):
        return Done(replayed=True)
    if isinstance(error, InProgress):
        return Later(min(error.retry_after, BUSY_PAUSE_SECONDS), str(error))
    if isinstance(error, NotNow | LeaseLost):
        return Later(BUSY_PAUSE_SECONDS, str(error))
    if isinstance(error, FingerprintMismatch):
        return Dead(f"its id was used by a message that says something else; {error}")
    if isinstance(error, KeyProblem | OutcomeUnknown | CorruptRecord):
        return Dead(str(error))
    if isinstance(error, StoreError):
        return Later(STORE_PAUSE_SECONDS, str(error))
    return None


def verdict_for_failure(error: Exception, failures: int, limit: int, pause: float) -> Verdict:
    """What it means that the handler failed for the `failures`th time."""
    told = f"{type(error).__qualname__}: {error}"
    if isinstance(error, Reject):
        return Dead(f"its handler rejected it: {error}")
    if failures >= limit:
        return Dead(f"its handler failed {failures} times, the last time with {told}")
    return Later(pause, f"its handler failed with {told}", failed=True)
