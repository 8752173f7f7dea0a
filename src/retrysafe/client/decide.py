"""What to do after an attempt. Pure: what was seen and where we stand come in, one of three verdicts goes out.

    Again     the same request with the same key, after a while
    Rotate    the same request with a new key: the server said that under this key it surely did not happen
    Finish    the caller gets what was seen; `settled` if it is the server's last word on this key

How an attempt is read, in this order:

| seen | reading |
|---|---|
| no connection was made | retry: nothing was sent |
| the connection broke, or it took too long | retry with the same key: it may have happened |
| a certificate nobody trusts, a request that cannot be written | finish |
| below 400, or a replay | finish: this is the answer |
| a problem with `retry_same_key` | 409: busy, wait for as long as there is time; else retry |
| a problem with only `safe_new_key`, 5xx and not a mismatch | rotate |
| a problem with neither | finish: it will not change |
| `Stripe-Should-Retry` | what it says |
| 409 with Retry-After, or Stripe's `idempotency_key_in_use` | busy |
| 409 | retry: it may be busy or a refusal. A second refusal is a replay, and ends it |
| 408, 425, 429, and 5xx but 501, 505, 511 | retry |
| anything else, 422 above all | finish |

Requests without a key (GET, HEAD …) are retried for broken connections, 408, 425, 429 and 5xx only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Literal, NamedTuple

from retrysafe.client.settings import Retries

Reach = Literal["unsent", "unclear", "hopeless"]
"""How far a failed attempt came: surely not to the server; nobody knows; it would fail the same way again."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
PERMANENT_STATUSES = frozenset({501, 505, 511})
"""Not implemented, HTTP version, log in to the network: the next attempt gets the same."""

MAX_DOUBLINGS = 32
"""Beyond it the cap has long been reached, and the power would only grow."""


@dataclass(frozen=True, slots=True)
class AnsweredAttempt:
    """An answer. `headers` are in lower case; `body` is decoded, and empty where nobody has to look into it."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """No answer."""

    error: Exception
    reach: Reach


AttemptResult = AnsweredAttempt | FailedAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """Where a call stands after an attempt."""

    sends: int
    """Attempts so far, this one included."""
    busy: int = 0
    """How many of the earlier ones were told that the first is still running."""
    elapsed: float = 0.0
    now: float = 0.0
    """Seconds since 1970: only for a Retry-After that is a date, from a server that sends no Date."""
    jitter: float = 0.0
    """Chance, from 0 up to but not including 1."""
    keyed: bool = True
    repeatable: bool = True
    rotations: int = 0
    own_key: bool = True
    """We made the key. A key that the caller gave is never exchanged."""


class RetryVerdict(NamedTuple):
    after: float
    why: str
    busy: bool = False
    """The server is working on it: not a failure, and no charge on the retry budget."""


class RotateVerdict(NamedTuple):
    after: float
    why: str


class FinishVerdict(NamedTuple):
    why: str
    settled: bool = False


AttemptVerdict = RetryVerdict | RotateVerdict | FinishVerdict


class AttemptClass(Enum):
    FINAL = "final"
    BUSY = "busy"
    RETRY = "retry"
    ROTATE = "rotate"


class ServerProblem(NamedTuple):
    """What a server says about the key: the members that retrysafe's own answers carry, and anybody's may."""

    type: str
    retry_same_key: bool
    safe_new_key: bool


# The decision -----------------------------------------------------------------------------------


def decide(seen: AttemptResult, at: AttemptState, retries: Retries) -> AttemptVerdict:
    reading, why = read_failure(seen) if isinstance(seen, FailedAttempt) else read_answer(seen, at)
    if reading is AttemptClass.FINAL:
        return FinishVerdict(why, settled=isinstance(seen, AnsweredAttempt))
    if reading is AttemptClass.ROTATE and not (at.own_key and at.rotations < retries.new_keys):
        return FinishVerdict(f"{why}, but this key may not be exchanged", settled=True)
    if not at.repeatable and not (isinstance(seen, FailedAttempt) and seen.reach == "unsent"):
        return FinishVerdict(f"{why}; it could be sent only once")
    if reading is not AttemptClass.BUSY and at.sends - at.busy >= retries.attempts:
        return FinishVerdict(f"{why}; gave up after {at.sends} attempts")
    after = compute_delay(seen, at, retries)
    if at.elapsed + after > retries.deadline:
        return FinishVerdict(f"{why}; the next attempt would be after the deadline of {retries.deadline:g} s")
    if reading is AttemptClass.ROTATE:
        return RotateVerdict(after, why)
    return RetryVerdict(after, why, busy=reading is AttemptClass.BUSY)


def read_failure(seen: FailedAttempt) -> tuple[AttemptClass, str]:
    name = type(seen.error).__name__
    if seen.reach == "hopeless":
        return AttemptClass.FINAL, f"{name} would happen again"
    if seen.reach == "unsent":
        return AttemptClass.RETRY, f"{name}: nothing was sent"
    return AttemptClass.RETRY, f"{name}: it may have arrived"


def read_answer(seen: AnsweredAttempt, at: AttemptState) -> tuple[AttemptClass, str]:
    status = seen.status
    if status < 400:
        return AttemptClass.FINAL, f"answered with {status}"
    if not at.keyed:
        return (AttemptClass.RETRY if is_transient(status) else AttemptClass.FINAL), f"answered with {status}"
    if seen.headers.get("idempotent-replayed", "").strip().lower() == "true":
        return AttemptClass.FINAL, f"{status} is the stored answer of this key"
    problem = parse_problem(seen)
    if problem is not None:
        return read_problem(status, problem)
    asked = seen.headers.get("stripe-should-retry", "").strip().lower()
    if asked in ("true", "false"):
        reading = AttemptClass.RETRY if asked == "true" else AttemptClass.FINAL
        return reading, f"answered with {status}, and Stripe-Should-Retry is {asked}"
    if status == 409:
        return (AttemptClass.BUSY if is_busy(seen) else AttemptClass.RETRY), "answered with 409"
    return (AttemptClass.RETRY if is_transient(status) else AttemptClass.FINAL), f"answered with {status}"


def read_problem(status: int, problem: ServerProblem) -> tuple[AttemptClass, str]:
    why = f"answered with {status} ({problem.type or 'no type'})"
    if problem.retry_same_key:
        return (AttemptClass.BUSY if status == 409 else AttemptClass.RETRY), why
    # A mismatch may say that a new key is safe, and is right; but it is the caller who has to see that one key was
    # used for two requests. And a 4xx stays what it is under any key.
    if problem.safe_new_key and status >= 500 and not problem.type.endswith("mismatch"):
        return AttemptClass.ROTATE, f"{why}: it surely did not happen"
    return AttemptClass.FINAL, f"{why}, and that is final"


def is_transient(status: int) -> bool:
    return status in TRANSIENT_STATUSES or (status >= 500 and status not in PERMANENT_STATUSES)


def is_busy(seen: AnsweredAttempt) -> bool:
    if "retry-after" in seen.headers:
        return True
    error = _parse_object(seen.body).get("error")
    return isinstance(error, dict) and error.get("code") == "idempotency_key_in_use"


def parse_problem(seen: AnsweredAttempt) -> ServerProblem | None:
    """What the server says about the key; None if it says nothing of the kind."""
    told = _parse_object(seen.body)
    same, new = told.get("retry_same_key"), told.get("safe_new_key")
    if not isinstance(same, bool) and not isinstance(new, bool):
        return None
    kind = told.get("type")
    return ServerProblem(kind if isinstance(kind, str) else "", same is True, new is True)


def _parse_object(body: bytes) -> dict[str, Any]:
    if body.lstrip()[:1] != b"{":
        return {}
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


# How long to wait -------------------------------------------------------------------------------


def compute_delay(seen: AttemptResult, at: AttemptState, retries: Retries) -> float:
    """Full jitter; or what the server asks for, with a little jitter, so that not all come back at that second."""
    asked = parse_retry_after(seen.headers, at.now) if isinstance(seen, AnsweredAttempt) else None
    if asked is not None:
        return min(asked, retries.max_retry_after) + at.jitter * min(retries.base, retries.cap)
    return at.jitter * min(retries.cap, retries.base * float(1 << min(at.sends - 1, MAX_DOUBLINGS)))


_SECONDS_PATTERN = re.compile(r"\d{1,15}(\.\d{1,9})?")


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds from now, by a number or a date; None if there is none that can be read.

    A date is compared with the server's own Date where it sent one: then nobody's clock has to be right.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS_PATTERN.fullmatch(text):
        return float(text)
    until = _parse_date(text)
    if until is None:
        return None
    sent = _parse_date(headers.get("date", ""))
    return max(0.0, until - (now if sent is None else sent))


def _parse_date(text: str) -> float | None:
    if not text:
        return None
    try:
        found: datetime = parsedate_to_datetime(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
