"""Our errors as the log may have them: no key, no scope, no words of the user's code (S28).

The words of most errors hold the key, and some what a step of the user's said when it failed. The log gets their kind
and the record's id; `retrysafe keys show` finds the rest. Only errors about the store or the set-up keep their words,
for those are what the operator needs, and what is secret in them is struck out.
"""

from __future__ import annotations

from retrysafe.errors import RetrySafeError, StoreError, UsageError
from retrysafe.web import problems

REDACTED = "…"

MIN_BARE_SECRET_CHARS = 6
"""How long a key or scope must be to be struck out where it stands without quotes; shorter ones are in every word."""


def describe_error(error: BaseException, *secrets: str) -> str:
    """One line about the error."""
    kind = type(error).__qualname__
    if isinstance(error, StoreError | UsageError):
        return f"{kind}: {redact(' '.join(str(error).splitlines()), *secrets)}"
    return f"{kind}: {problems.problem_for_error(error).title}" if isinstance(error, RetrySafeError) else kind


def redact(text: str, *secrets: str) -> str:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(repr(secret), repr(REDACTED))
        if len(secret) >= MIN_BARE_SECRET_CHARS:
            text = text.replace(repr(secret)[1:-1], REDACTED).replace(secret, REDACTED)
    return text
