"""Our own answers: `application/problem+json` (RFC 9457), with stable types and what to do next.

No internals reach a client: no exception text, no stored bytes, no address of a store. A client gets only the texts
below and, for a malformed key, the rule that it broke. What the operator needs is in the log (S31).

The log may not have everything either: no key, no scope, no text of the user's code (S28). Most error messages contain
the key, and some the message of a failed step. The log gets the class of the error and the record's id, and `retrysafe
keys show` finds the rest. Only errors about the store or the configuration are logged with their message, because the
operator needs it; keys and scopes in it are redacted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from retrysafe.engine.problem_documents import DOCS_URL, Problem, build_problem_document, build_problem_headers
from retrysafe.errors import (
    AnswerGone,
    CommitUnclear,
    CorruptRecord,
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    MalformedKey,
    MissingKey,
    NotFinished,
    OperationChanged,
    OutcomeUnknown,
    OutcomeUnrecorded,
    RetrySafeError,
    RolledBack,
    ScopeRequired,
    StepNotRecorded,
    StoreError,
    UsageError,
)
from retrysafe.web.capture import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """The status of each of our own answers. Stripe answers a mismatch with 400, Square with 409."""

    missing: int = 400
    malformed: int = 400
    mismatch: int = 422
    in_progress: int = 409
    too_large: int = 413
    too_slow: int = 408
    gone: int = 410
    quota: int = 429
    unknown: int = 500
    failed: int = 500
    unavailable: int = 503

    def __post_init__(self) -> None:
        for field in fields(self):
            code = getattr(self, field.name)
            if not isinstance(code, int) or not 400 <= code <= 599:
                raise UsageError(f"Codes({field.name}={code!r}): give a status from 400 to 599")


MISSING = Problem(
    "missing", "missing-key", "Idempotency-Key is missing",
    "This request needs an Idempotency-Key header: send one random key per logical operation, and the same key "
    "with each retry of it.",
    False, True,
)  # fmt: skip
MALFORMED = Problem(
    "malformed", "malformed-key", "Idempotency-Key cannot be used",
    "Send exactly one Idempotency-Key header line with 1 to 255 visible ASCII characters, bare (without a comma) or "
    "as a quoted string.",
    False, True,
)  # fmt: skip
MISMATCH = Problem(
    "mismatch", "mismatch", "Idempotency-Key was used with another request",
    "This key was first used with a different request. Nothing was done. Send a new key for a new request, or repeat "
    "the original request unchanged.",
    False, True,
)  # fmt: skip
IN_PROGRESS = Problem(
    "in_progress", "in-progress", "The first request is still running",
    "A request with this key is being worked on. Send the same request with the same key again after Retry-After.",
    True, False,
)  # fmt: skip
TOO_LARGE = Problem(
    "too_large", "too-large", "The request body is too large",
    "The body is larger than this route accepts. Nothing was done.",
    False, True,
)  # fmt: skip
TOO_SLOW = Problem(
    "too_slow", "too-slow", "The request body did not arrive in time",
    "The body was not complete within the time this server waits. Nothing was done by this request.",
    True, False,
)  # fmt: skip
UNREADABLE = Problem(
    "malformed", "unreadable-body", "The request body cannot be read",
    "The Content-Length header is not a number, or the body ended before it. Nothing was done.",
    True, False,
)  # fmt: skip
GONE = Problem(
    "gone", "answer-gone", "It was done, but its answer was not kept",
    "The request with this key was carried out once and will not be carried out again, but its answer was too large, "
    "a stream, or has been erased, or an operator said that it happened and gave no answer. Look the result up.",
    False, False,
)  # fmt: skip
UNKNOWN = Problem(
    "unknown", "outcome-unknown", "The outcome is unknown",
    "A request with this key began, and how it ended is not known. It will not run again until that has been found "
    "out. Do not send it with a new key: it may have happened.",
    True, False,
)  # fmt: skip
UNRECORDED = Problem(
    "unknown", "outcome-unrecorded", "It was done, but could not be recorded",
    "The request was carried out, but its answer could not be stored, and so is not shown. Send the same request with "
    "the same key again. Do not send it with a new key: it has happened.",
    True, False,
)  # fmt: skip
LOST = Problem(
    "unknown", "lease-lost", "This attempt no longer owns its key",
    "Another attempt replaced this one because it took too long, or the store lost the key. This attempt may have done "
    "its work, but its answer is not stored. Send the same request with the same key again; never use a new key.",
    True, False,
)  # fmt: skip
CORRUPT = Problem(
    "unknown", "corrupt-record", "The stored answer cannot be read",
    "What is stored for this key is damaged. Nothing was run. Do not send it with a new key: it may have happened.",
    True, False,
)  # fmt: skip
FAILED = Problem(
    "failed", "failed", "The request failed",
    "The server met an error while it worked on this request. This is its final answer for this key.",
    False, False,
)  # fmt: skip
FAILED_FOR_NOW = Problem(
    "failed", "failed-for-now", "The request failed",
    "The server met an error while it worked on this request. It may be tried again with the same key.",
    True, False,
)  # fmt: skip
UNAVAILABLE = Problem(
    "unavailable", "store-unavailable", "Keys cannot be checked right now",
    "The store of idempotency keys cannot be used at the moment, so this request was not carried out. Send it again "
    "with the same key. Do not send it with a new key: an earlier request with this key may have been carried out, "
    "and that cannot be looked up now.",
    True, False,
)  # fmt: skip
QUOTA = Problem(
    "quota", "quota", "Too many idempotency keys",
    "This account has too many keys, stored bytes or running requests at the moment. Nothing was done by this request.",
    True, False,
)  # fmt: skip
MISCONFIGURED = Problem(
    "failed", "misconfigured", "The server is set up wrongly",
    "This route cannot be protected as it is set up, so nothing was done by this request. The operator finds the "
    "reason in the log.",
    True, False,
)  # fmt: skip
UNPROTECTED = Problem(
    "failed", "unprotected", "The server is set up wrongly",
    "This route must claim its idempotency key and did not: the request was carried out, but not protected. The "
    "operator finds the reason in the log.",
    False, False,
)  # fmt: skip
NOT_FOUND = Problem(
    "", "status-not-found", "There is no such status",
    "The address is wrong, has expired, or belongs to another account.",
    False, False, 404,
)  # fmt: skip
NOT_FINISHED = Problem(
    "unavailable", "not-finished", "It has begun and is not finished yet",
    "The request was begun, and stopped at a point from which it can resume. Send the same request with the same key "
    "again after Retry-After. Do not send it with a new key: part of it has happened.",
    True, False,
)  # fmt: skip
ROLLED_BACK = Problem(
    "in_progress", "rolled-back", "It was undone, and nothing happened",
    "The database undid all of this request. Send it again with the same key.",
    True, True,
)  # fmt: skip

_PROBLEM_BY_ERROR: tuple[tuple[type[RetrySafeError], Problem], ...] = (
    (MissingKey, MISSING),
    (FingerprintMismatch, MISMATCH),
    (InProgress, IN_PROGRESS),
    (RolledBack, ROLLED_BACK),
    (NotFinished, NOT_FINISHED),
    (OperationChanged, NOT_FINISHED),
    (OutcomeUnknown, UNKNOWN),
    (OutcomeUnrecorded, UNRECORDED),
    (AnswerGone, GONE),
    (LeaseLost, LOST),
    (CorruptRecord, CORRUPT),
    (ScopeRequired, MISCONFIGURED),
    (UsageError, MISCONFIGURED),
    (StepNotRecorded, NOT_FINISHED),
    (CommitUnclear, UNKNOWN),
    (StoreError, UNAVAILABLE),
)

ALL_PROBLEMS = tuple(value for value in list(globals().values()) if isinstance(value, Problem))


def problem_for_error(error: RetrySafeError) -> Problem:
    if isinstance(error, MalformedKey):
        # These texts are ours. They name the rule that was broken and never contain what the client sent.
        return MALFORMED._replace(detail=f"The key was not used, and nothing was done: {error.why}; {error.fix}.")
    for kind, problem in _PROBLEM_BY_ERROR:
        if isinstance(error, kind):
            return problem
    return FAILED_FOR_NOW


def build_problem_response(
    problem: Problem, codes: Codes, docs: str = DOCS_URL, *, retry_after: int | None = None
) -> Response:
    """The response for a problem. `retry_after` is in whole seconds."""
    code = problem.status or getattr(codes, problem.code)
    headers = build_problem_headers(problem, docs)
    if retry_after is not None:
        headers.append(("retry-after", str(retry_after)))
    return Response.build(code, headers, json.dumps(build_problem_document(problem, code, docs)).encode())


# For the log ----------------------------------------------------------------------------------------

REDACTED = "…"

MIN_BARE_SECRET_CHARS = 6
"""A key or scope of at least this length is also redacted without quotes. Shorter ones occur in ordinary words."""


def describe_error(error: BaseException, *secrets: str) -> str:
    """The error in one line, as the log may have it."""
    kind = type(error).__qualname__
    if isinstance(error, StoreError | UsageError):
        return f"{kind}: {redact(' '.join(str(error).splitlines()), *secrets)}"
    return f"{kind}: {problem_for_error(error).title}" if isinstance(error, RetrySafeError) else kind


def redact(text: str, *secrets: str) -> str:
    """The text without these keys and scopes."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(repr(secret), repr(REDACTED))
        if len(secret) >= MIN_BARE_SECRET_CHARS:
            text = text.replace(repr(secret)[1:-1], REDACTED).replace(secret, REDACTED)
    return text
