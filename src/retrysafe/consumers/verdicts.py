"""The verdict on a message: it is done, it is delivered again later, or it is a dead letter. Pure."""

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
    """The message was handled and committed, now or before (`replayed`): acknowledge it."""

    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Later:
    """Let the broker deliver the message again in `seconds`. `failed`: its handler failed."""

    seconds: float
    why: str
    failed: bool = False
    logged: str = field(default="", compare=False)
    """The reason for the log: without ids and without the text of the handler's error (S28)."""


@dataclass(frozen=True, slots=True)
class Dead:
    """No retry will help: put the message aside for an operator, then acknowledge it."""

    why: str
    """The whole reason, for the dead letter, which carries the message itself."""
    logged: str = field(default="", compare=False)


Verdict = Done | Later | Dead


class Reject(Exception):
    """Raised by a handler for a message that no retry will help: it becomes a dead letter at once."""


BUSY_PAUSE_SECONDS = 2.0
"""The longest wait for a message that another worker handles: most are done by then."""

STORE_PAUSE_SECONDS = 5.0
"""The wait after the store could not be reached. The handler did not run, and no failure is counted."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
"""The wait after a handler's first failure; it doubles with each failure, up to the maximum."""


def compute_backoff(failures: int) -> float:
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 16), MAX_PAUSE_SECONDS))


def verdict_for_error(error: RetrySafeError) -> Verdict | None:
    """The verdict for an error of ours; None if the program is wrong and not the message."""
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
    """The verdict after the handler failed for the `failures`th time."""
    reason = f"{type(error).__qualname__}: {error}"
    if isinstance(error, Reject):
        return Dead(f"its handler rejected it: {error}")
    if failures >= limit:
        return Dead(f"its handler failed {failures} times, the last time with {reason}")
    return Later(pause, f"its handler failed with {reason}", failed=True)
