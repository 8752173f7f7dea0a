"""The base class of schemes: secrets, a tolerance, and `verify`. A scheme of your own subclasses it and implements
`read`."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from retrysafe.core.deprecation import renamed_members, warn_renamed
from retrysafe.errors import UsageError, VerificationError
from retrysafe.webhooks.schedules import UNKNOWN, Schedule
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.headers import HeaderPairs, Headers

TOLERANCE_SECONDS = 300.0
"""The largest difference between the sender's clock and ours, in either direction. The senders' own libraries use the
same."""

MAX_BODY_BYTES = 1 << 20

Secret = str | bytes


class Verified(NamedTuple):
    """The result of a verification."""

    id: str
    """The sender's id of the event."""
    key: str
    """What identifies the event here. Equal to `id` if the signature covers the id, else `id` together with the signed
    body: an attacker who sets an unsigned id must not take the place of another event."""
    type: str
    timestamp: int | None
    """When the delivery was sent, in seconds; None if the scheme signs no time."""
    challenge: bytes | None = None
    """Set if the delivery is no event but checks that the endpoint exists: this is the answer, and nothing is
    stored."""


class Scheme:
    """One sender's way to sign. Each of several secrets may have signed, so that secrets can be rotated."""

    __getattr__ = renamed_members(
        "Scheme",
        {
            "refusal": "verification_error",
            "unsigned": "unsigned_error",
            "sent_at": "parse_timestamp",
            "listed": "check_signature_count",
            "event_id": "check_id",
            "prepared": "prepare_secrets",
        },
    )

    name: ClassVar[str] = "webhook"
    schedule: Schedule = UNKNOWN
    max_body: int = MAX_BODY_BYTES
    signature_headers: frozenset[str] = frozenset()
    """Names in lower case. These headers are not shown to handlers and not stored: with a stored signature the request
    could be sent again."""

    def __init__(self, *secrets: Secret, tolerance: float = TOLERANCE_SECONDS) -> None:
        if not secrets:
            raise UsageError(
                f"{type(self).__name__}() needs the signing secret of the endpoint; several while rotating"
            )
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < float("inf"):
            raise UsageError(f"{type(self).__name__}(tolerance={tolerance!r}): give seconds, more than zero")
        self.tolerance = float(tolerance)
        prepare = self.prepare_secrets
        if "prepared" in vars(type(self)):  # a subclass that overrides the method by its old name
            warn_renamed(f"{type(self).__name__}.prepared", f"{type(self).__name__}.prepare_secrets")
            prepare = vars(type(self))["prepared"].__get__(self)
        self.secrets = prepare(secrets)

    def verify(self, headers: HeaderPairs | Headers, body: bytes, *, now: float) -> Verified:
        """The verified event. `body` is the request's body exactly as it arrived; `now` is in seconds since 1970.

        Raises only VerificationError, whatever its arguments are.
        """
        parsed_headers = Headers(headers, self.name)
        if not isinstance(body, bytes):
            raise self.verification_error(
                f"the body is {type(body).__name__}; pass the raw bytes of the request, not a parsed body"
            )
        if len(body) > self.max_body:
            raise self.verification_error(f"the body has {len(body)} bytes; at most {self.max_body} are read")
        return self.read(parsed_headers, body, now)

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        """The scheme itself: `verify` calls it after its own checks."""
        raise NotImplementedError

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        """The headers that a sender would send: for tests, and for senders."""
        raise NotImplementedError

    def prepare_secrets(self, secrets: tuple[Secret, ...]) -> tuple[bytes, ...]:
        """The secrets as bytes. Most senders use the text of the secret unchanged."""
        return tuple(secret_to_bytes(secret, type(self).__name__) for secret in secrets)

    # For subclasses -------------------------------------------------------------------------

    def verification_error(self, why: str) -> VerificationError:
        return VerificationError(self.name, why)

    def unsigned_error(self) -> VerificationError:
        return self.verification_error("no signature was made with a secret of ours")

    def parse_timestamp(self, text: str, now: float) -> int:
        """A signed time in seconds. Raises VerificationError if it is malformed, or too far from `now`."""
        at = parts.parse_seconds(text)
        if at is None:
            raise self.verification_error(
                f"the timestamp {text[:40]!r} is not a whole number of seconds in ASCII digits"
            )
        if not abs(now - at) <= self.tolerance:
            raise self.verification_error(
                f"it was sent at {at}, more than {self.tolerance:.0f} s from our clock at {now:.0f}"
            )
        return at

    def check_signature_count(self, items: list[str]) -> list[str]:
        """The signatures unchanged. Raises VerificationError if there are too many to try."""
        if len(items) > parts.MAX_SIGNATURES:
            raise self.verification_error(
                f"there are {len(items)} signatures; at most {parts.MAX_SIGNATURES} are tried"
            )
        return items

    def check_id(self, value: object, where: str) -> str:
        """The value as an id. Raises VerificationError if it cannot be one; `where` names its place in the message."""
        found = parts.parse_id(value)
        if found is None:
            raise self.verification_error(f"{where} is no id of 1 to {parts.MAX_ID_CHARS} visible ASCII characters")
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.secrets)} secrets)"  # never the secrets


def secret_to_bytes(secret: object, scheme: str) -> bytes:
    data = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(data, bytes) or not data.strip():
        raise UsageError(f"{scheme}(…): a secret is text or bytes and not empty; got {type(secret).__name__}")
    return data


def bind_id_to_body(id: str, body: bytes) -> str:
    """The key of an event whose id is not signed: the id together with the digest of the signed body."""
    return f"{id} {parts.hash_body(body)}"
