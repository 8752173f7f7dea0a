"""Decide what to do after an attempt: a pure function of the attempt and the state of the call, with three verdicts.

    RetryVerdict      send the same request with the same key, after a delay
    RotateVerdict     send the same request with a new key: the server reports that nothing happened under the old one
    FinishVerdict     return the attempt to the caller; `settled` if it is the server's final answer for this key

How an attempt is classified, in this order:

| attempt | class |
|---|---|
| no connection was made | retry: nothing was sent |
| the connection broke, or the attempt timed out | retry with the same key: the request may have been executed |
| an untrusted certificate, a request that cannot be written | final |
| a status below 400, or a replay | final: this is the answer |
| a problem with `retry_same_key` | 409: busy, wait until the deadline; else retry |
| a problem with only `safe_new_key`, 5xx and not a mismatch | rotate |
| a problem with neither | final: a retry gets the same |
| `Stripe-Should-Retry` | as the header says |
| 409 with Retry-After, or Stripe's `idempotency_key_in_use` | busy |
| 409 | retry: the key may be busy, or this is a refusal. A second refusal is a replay, which is final |
| 408, 425, 429, and 5xx but 501, 505, 511 | retry |
| anything else, 422 above all | final |

Requests without a key (GET, HEAD …) are retried only for broken connections, 408, 425, 429 and 5xx.
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
from retrysafe.core.problem_names import problem_name

Reach = Literal["unsent", "unclear", "hopeless"]
"""How far a failed attempt got. `unsent`: the server got nothing. `unclear`: it may have got the request. `hopeless`: a
retry would fail in the same way."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
PERMANENT_STATUSES = frozenset({501, 505, 511})
"""Not implemented, HTTP version not supported, network login required: a retry gets the same."""

MAX_DOUBLINGS = 32
"""Limits the power of two. The cap is reached long before."""


@dataclass(frozen=True, slots=True)
class AnsweredAttempt:
    """The server answered. `headers` are in lower case. `body` is decoded; it is empty if the decision does not need
    it."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The attempt ended without an answer."""

    error: Exception
    reach: Reach


AttemptResult = AnsweredAttempt | FailedAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """The state of a call after an attempt."""

    sends: int
    """Attempts so far, this one included."""
    busy: int = 0
    """How many earlier attempts got the answer that the first request is still in progress."""
    elapsed: float = 0.0
    now: float = 0.0
    """Seconds since 1970. Used only for a Retry-After date of a server that sends no Date header."""
    jitter: float = 0.0
    """A random number, 0 <= jitter < 1."""
    keyed: bool = True
    repeatable: bool = True
    rotations: int = 0
    own_key: bool = True
    """The client made the key. A key that the caller set is never rotated."""


class RetryVerdict(NamedTuple):
    """Send the same request with the same key after `after` seconds."""

    after: float
    why: str
    busy: bool = False
    """The first request is still in progress. That is no failure, and takes nothing from the retry budget."""


class RotateVerdict(NamedTuple):
    """Send the same request with a new key after `after` seconds."""

    after: float
    why: str


class FinishVerdict(NamedTuple):
    """Return the attempt to the caller."""

    why: str
    settled: bool = False
    """This is the server's final answer for the key."""


AttemptVerdict = RetryVerdict | RotateVerdict | FinishVerdict


class AttemptClass(Enum):
    FINAL = "final"
    BUSY = "busy"
    RETRY = "retry"
    ROTATE = "rotate"


class ServerProblem(NamedTuple):
    """What an error answer says about the key. retrysafe's servers send these members, and others may too."""

    type: str
    retry_same_key: bool
    safe_new_key: bool


# The decision -----------------------------------------------------------------------------------


def decide(attempt: AttemptResult, state: AttemptState, retries: Retries) -> AttemptVerdict:
    """Classify the attempt, then apply the limits: rotations, repeatable body, number of attempts, deadline."""
    attempt_class, why = (
        classify_failure(attempt) if isinstance(attempt, FailedAttempt) else classify_answer(attempt, state)
    )
    if attempt_class is AttemptClass.FINAL:
        return FinishVerdict(why, settled=isinstance(attempt, AnsweredAttempt))
    if attempt_class is AttemptClass.ROTATE and not (state.own_key and state.rotations < retries.new_keys):
        return FinishVerdict(f"{why}, but this key may not be rotated", settled=True)
    if not state.repeatable and not (isinstance(attempt, FailedAttempt) and attempt.reach == "unsent"):
        return FinishVerdict(f"{why}; its body can be sent only once")
    if attempt_class is not AttemptClass.BUSY and state.sends - state.busy >= retries.attempts:
        return FinishVerdict(f"{why}; gave up after {state.sends} attempts")
    after = compute_delay(attempt, state, retries)
    if state.elapsed + after > retries.deadline:
        return FinishVerdict(f"{why}; the next attempt would be after the deadline of {retries.deadline:g} s")
    if attempt_class is AttemptClass.ROTATE:
        return RotateVerdict(after, why)
    return RetryVerdict(after, why, busy=attempt_class is AttemptClass.BUSY)


def classify_failure(attempt: FailedAttempt) -> tuple[AttemptClass, str]:
    name = type(attempt.error).__name__
    if attempt.reach == "hopeless":
        return AttemptClass.FINAL, f"{name}: a retry would fail in the same way"
    if attempt.reach == "unsent":
        return AttemptClass.RETRY, f"{name}: nothing was sent"
    return AttemptClass.RETRY, f"{name}: the request may have arrived"


def classify_answer(attempt: AnsweredAttempt, state: AttemptState) -> tuple[AttemptClass, str]:
    status = attempt.status
    if status < 400:
        return AttemptClass.FINAL, f"answered with {status}"
    if not state.keyed:
        return (AttemptClass.RETRY if is_transient(status) else AttemptClass.FINAL), f"answered with {status}"
    if attempt.headers.get("idempotent-replayed", "").strip().lower() == "true":
        return AttemptClass.FINAL, f"{status} is the stored answer of this key"
    problem = parse_problem(attempt)
    if problem is not None:
        return classify_problem(status, problem)
    should_retry = attempt.headers.get("stripe-should-retry", "").strip().lower()
    if should_retry in ("true", "false"):
        attempt_class = AttemptClass.RETRY if should_retry == "true" else AttemptClass.FINAL
        return attempt_class, f"answered with {status}, and Stripe-Should-Retry is {should_retry}"
    if status == 409:
        return (AttemptClass.BUSY if is_busy(attempt) else AttemptClass.RETRY), "answered with 409"
    return (AttemptClass.RETRY if is_transient(status) else AttemptClass.FINAL), f"answered with {status}"


def classify_problem(status: int, problem: ServerProblem) -> tuple[AttemptClass, str]:
    why = f"answered with {status} ({problem.type or 'no type'})"
    if problem.retry_same_key:
        return (AttemptClass.BUSY if status == 409 else AttemptClass.RETRY), why
    # A mismatch may say that a new key is safe, and that is true. But the caller must learn that one key was used for
    # two requests, and that an operation was undone. Any other 4xx would be the same with a new key.
    if problem.safe_new_key and status >= 500 and not problem_name(problem.type).endswith(("mismatch", "given-up")):
        return AttemptClass.ROTATE, f"{why}: nothing happened under this key"
    return AttemptClass.FINAL, f"{why}, and that is final"


def is_transient(status: int) -> bool:
    return status in TRANSIENT_STATUSES or (status >= 500 and status not in PERMANENT_STATUSES)


def is_busy(attempt: AnsweredAttempt) -> bool:
    if "retry-after" in attempt.headers:
        return True
    error = _parse_object(attempt.body).get("error")
    return isinstance(error, dict) and error.get("code") == "idempotency_key_in_use"


def parse_problem(attempt: AnsweredAttempt) -> ServerProblem | None:
    """The problem document of an answer. None if it says nothing about the key."""
    problem = _parse_object(attempt.body)
    same, new = problem.get("retry_same_key"), problem.get("safe_new_key")
    if not isinstance(same, bool) and not isinstance(new, bool):
        return None
    kind = problem.get("type")
    return ServerProblem(kind if isinstance(kind, str) else "", same is True, new is True)


def _parse_object(body: bytes) -> dict[str, Any]:
    if body.lstrip()[:1] != b"{":
        return {}
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


# How long to wait -------------------------------------------------------------------------------


def compute_delay(attempt: AttemptResult, state: AttemptState, retries: Retries) -> float:
    """The delay in seconds: full jitter. If the server sent Retry-After: that, plus a little jitter, so that its
    clients do not all return in the same second."""
    retry_after = parse_retry_after(attempt.headers, state.now) if isinstance(attempt, AnsweredAttempt) else None
    if retry_after is not None:
        return min(retry_after, retries.max_retry_after) + state.jitter * min(retries.base, retries.cap)
    return state.jitter * min(retries.cap, retries.base * float(1 << min(state.sends - 1, MAX_DOUBLINGS)))


_SECONDS_PATTERN = re.compile(r"\d{1,15}(\.\d{1,9})?")


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds from now, from a number or a date. None if the header is missing or cannot be parsed.

    A date is compared with the server's own Date header if there is one, so that clocks need not agree.
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
