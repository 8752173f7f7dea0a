"""Errors that the client raises before it sends anything, and helpers that read the errors of HTTP libraries.

    UsageError
    ├── RetriesError          a setting has an impossible value
    ├── UnrepeatableBody      the body is a stream, which can be sent only once
    └── KeyTooOld             the server may have forgotten this key, and would execute the request again

All other failures reach the caller unchanged: the response of the server, or the exception of httpx or requests with a
note that names the key.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from retrysafe.core.times import format_time
from retrysafe.errors import UsageError

MAX_CHAIN_LENGTH = 10


class RetriesError(UsageError):
    anchor = "retries"

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field}={value!r} is not possible: {fix}")


class UnrepeatableBody(UsageError):
    anchor = "unrepeatable-body"

    def __init__(self, method: str, place: str, limit: int) -> None:
        super().__init__(
            f"the body of {method} {place} is a stream of unknown length or of more than {limit} bytes, so it could "
            "not be sent a second time: pass bytes, raise Retries(max_body=…), or send it without retries by "
            'Retries(streams="once")'
        )


class KeyTooOld(UsageError):
    anchor = "key-too-old"

    def __init__(
        self, operation: str, call: str, key: str, *, first_sent: int, life: float, status: int | None
    ) -> None:
        outcome = f"was answered with {status}" if status is not None else "was never answered"
        super().__init__(
            f"{call} of operation {operation!r} was first sent at {format_time(first_sent)} with key {key!r} "
            f"and {outcome}; that is more than {life:g} s ago, so the server may have forgotten the key and would "
            "execute the call again. Find out whether it was executed, then use a new operation name; or "
            "raise Retries(key_life=…) if the server keeps keys longer"
        )


# Errors of HTTP libraries -----------------------------------------------------------------------


def iter_wrapped(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors it wraps: causes, contexts, arguments, and the `reason` of urllib3. Libraries hide
    the real error two or three layers deep."""
    queue, count = [error], 0
    while queue and count < MAX_CHAIN_LENGTH:
        found = queue.pop(0)
        count += 1
        yield found
        inner = (found.__cause__, found.__context__, getattr(found, "reason", None), *found.args)
        queue += [one for one in inner if isinstance(one, BaseException) and one is not found]


def is_untrusted_certificate(error: BaseException) -> bool:
    """True if the server's certificate is not trusted. A retry cannot change that; a person has to look at it."""
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in iter_wrapped(error))
