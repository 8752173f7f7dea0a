"""The http:// addresses that commands are given: checked before anything is sent, and why nobody answered there."""

from __future__ import annotations

from http.client import HTTPException
from urllib.parse import urlsplit

from retrysafe.errors import UsageError

FAILURES = (OSError, HTTPException)
"""What a request can end with that gets no answer: nobody is there, or somebody who speaks no HTTP."""


def check_address(address: str) -> None:
    """Raise UsageError for what is no address, which urllib finds out in the middle of a request."""
    try:
        found = urlsplit(address)
        wrong = found.scheme not in ("http", "https") or not found.hostname
        _ = found.port
    except ValueError as error:
        raise UsageError(f"{address!r}: {error}") from error
    if wrong:
        raise UsageError(f"{address!r}: give the http:// address of a route")
    if not address.isascii() or any(each <= " " or each == "\x7f" for each in address):
        raise UsageError(f"{address!r}: an address has only ASCII and no spaces; write %20 for a space")


def explain_failure(error: Exception) -> str:
    """Why nobody answered, in a few words."""
    if isinstance(error, HTTPException):
        return f"{type(error).__name__}: {str(error).strip()}"
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)
