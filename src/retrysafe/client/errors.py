"""What the client refuses before anything is sent.

    UsageError
    ├── RetriesError          a setting that is not possible
    ├── UnrepeatableBody      a body that can be read once cannot be sent twice
    └── KeyTooOld             the server may have forgotten this key: sending it again may do it again

Everything else reaches the caller as its own library says it: an answer is an answer, and a broken connection is the
exception of httpx or requests, with a note that names the key.
"""

from __future__ import annotations

from retrysafe.core.times import format_time
from retrysafe.errors import UsageError


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
        known = f"was answered with {status}" if status is not None else "was never answered"
        super().__init__(
            f"{call} of operation {operation!r} was first sent at {format_time(first_sent)} with key {key!r} "
            f"and {known}; that is more than {life:g} s ago, so the server may have forgotten the key and would do "
            "it again. Look up what became of it, then use a new operation name; or raise Retries(key_life=…) if the "
            "server keeps keys longer"
        )
