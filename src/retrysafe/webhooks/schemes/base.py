"""What every scheme is: secrets, a tolerance, and `verify`. To write one of your own, subclass and give `read`."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from retrysafe.errors import UsageError, VerificationError
from retrysafe.webhooks.schedules import UNKNOWN, Schedule
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.headers import Given, Headers

TOLERANCE_SECONDS = 300.0
"""Seconds between the sender's clock and ours, either way. What the senders' own libraries use."""

MAX_BODY_BYTES = 1 << 20

Secret = str | bytes


class Verified(NamedTuple):
    """What a verified delivery is about."""

    id: str
    """The sender's id of the event."""
    key: str
    """What makes it one event for us. Equal to `id` where the signature covers the id; else `id` and the signed body
    together, for an id that anybody could have put there must not take the place of another event."""
    type: str
    timestamp: int | None
    """When it was sent, in seconds; None where the scheme signs no time."""
    challenge: bytes | None = None
    """Not an event but a question whether we are there: this is the answer, and nothing is stored."""


class Scheme:
    """One sender's way to sign. Several secrets: each of them may have signed (rotation)."""

    name: ClassVar[str] = "webhook"
    schedule: Schedule = UNKNOWN
    max_body: int = MAX_BODY_BYTES
    signature_headers: frozenset[str] = frozenset()
    """Lower-case names: not shown to handlers, not stored. A stored signature is a request to be sent again."""

    def __init__(self, *secrets: Secret, tolerance: float = TOLERANCE_SECONDS) -> None:
        if not secrets:
            raise UsageError(
                f"{type(self).__name__}() needs the signing secret of the endpoint; several while rotating"
            )
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < float("inf"):
            raise UsageError(f"{type(self).__name__}(tolerance={tolerance!r}): give seconds, more than zero")
        self.tolerance = float(tolerance)
        self.secrets = self.prepared(secrets)

    def verify(self, headers: Given | Headers, body: bytes, *, now: float) -> Verified:
        """The verified event. `body` is the request's body exactly as it came; `now` is in seconds since 1970.

        Raises VerificationError, and nothing else whatever it is given.
        """
        sent = Headers(headers, self.name)
        if not isinstance(body, bytes):
            raise self.refusal(
                f"the body is {type(body).__name__}; pass the raw bytes of the request, not what they mean"
            )
        if len(body) > self.max_body:
            raise self.refusal(f"the body has {len(body)} bytes; at most {self.max_body} are read")
        return self.read(sent, body, now)

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        """The scheme itself: `verify` without its first checks."""
        raise NotImplementedError

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        """The headers a sender would send: for tests, and for senders."""
        raise NotImplementedError

    def prepared(self, secrets: tuple[Secret, ...]) -> tuple[bytes, ...]:
        """The secrets as bytes. Most senders use the text of the secret as it stands."""
        return tuple(secret_to_bytes(secret, type(self).__name__) for secret in secrets)

    # For schemes ----------------------------------------------------------------------------

    def refusal(self, why: str) -> VerificationError:
        return VerificationError(self.name, why)

    def unsigned(self) -> VerificationError:
        return self.refusal("no signature was made with a secret of ours")

    def sent_at(self, text: str, now: float) -> int:
        """A signed time, if it is near enough to ours."""
        at = parts.parse_seconds(text)
        if at is None:
            raise self.refusal(f"the timestamp {text[:40]!r} is not a whole number of seconds in ASCII digits")
        if not abs(now - at) <= self.tolerance:
            raise self.refusal(f"it was sent at {at}, more than {self.tolerance:.0f} s from our clock at {now:.0f}")
        return at

    def listed(self, items: list[str]) -> list[str]:
        """A list of signatures, if it is not absurdly long."""
        if len(items) > parts.MAX_SIGNATURES:
            raise self.refusal(f"there are {len(items)} signatures; at most {parts.MAX_SIGNATURES} are tried")
        return items

    def event_id(self, value: object, where: str) -> str:
        found = parts.parse_id(value)
        if found is None:
            raise self.refusal(f"{where} is no id of 1 to {parts.MAX_ID_CHARS} visible ASCII characters")
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.secrets)} secrets)"  # never the secrets


def secret_to_bytes(secret: object, scheme: str) -> bytes:
    data = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(data, bytes) or not data.strip():
        raise UsageError(f"{scheme}(…): a secret is text or bytes and not empty; got {type(secret).__name__}")
    return data


def bind_id_to_body(id: str, body: bytes) -> str:
    """The key of an event whose id is not signed: it counts only together with the signed body."""
    return f"{id} {parts.hash_body(body)}"
