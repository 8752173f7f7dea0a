"""Standard Webhooks 1.0, and Svix, which is the same under other header names.

Signed: `{id}.{timestamp}.{body}`. The signature header is a list with spaces: `v1,` and base64 of HMAC-SHA256, or
`v1a,` and base64 of an ed25519 signature. An item that is malformed or of a version we do not know is passed over:
another one may be good. A version is only ever tried with the secrets of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from retrysafe.errors import UsageError
from retrysafe.webhooks.schedules import STANDARD, SVIX
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import TOLERANCE, Scheme, Secret, Verified, as_bytes
from retrysafe.webhooks.schemes.ed25519 import PublicKey, SigningKey, public_key, signing_key
from retrysafe.webhooks.schemes.headers import Headers

LENGTHS = range(24, 65)
"""Bytes of a symmetric secret, as the specification says."""


class StandardWebhooks(Scheme):
    """`StandardWebhooks("whsec_…")`, or `"whpk_…"` for a sender that signs with ed25519 (needs retrysafe[webhooks]).

    A secret given as bytes is used as it is.
    """

    name: ClassVar[str] = "standard-webhooks"
    schedule = STANDARD
    prefixes: ClassVar[tuple[str, ...]] = ("webhook",)
    signature_headers = frozenset({"webhook-signature"})

    def __init__(self, *secrets: Secret, tolerance: float = TOLERANCE) -> None:
        self.signing: list[SigningKey] = []
        self.public: list[PublicKey] = []
        super().__init__(*secrets, tolerance=tolerance)

    def prepared(self, secrets: tuple[Secret, ...]) -> tuple[bytes, ...]:
        symmetric = []
        for secret in secrets:
            if isinstance(secret, str) and secret.startswith("whsk_"):
                key = signing_key(decoded(secret, "whsk_"))
                self.signing.append(key)
                self.public.append(key.public)
            elif isinstance(secret, str) and secret.startswith("whpk_"):
                self.public.append(public_key(decoded(secret, "whpk_")))
            elif isinstance(secret, str):
                symmetric.append(checked(decoded(secret, "whsec_")))
            else:
                symmetric.append(as_bytes(secret, type(self).__name__))
        return tuple(symmetric)

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        prefix = next((each for each in self.prefixes if f"{each}-id" in headers), self.prefixes[0])
        id_ = self.event_id(headers.one(f"{prefix}-id"), f"{prefix}-id")
        if "." in id_:
            # With a full stop in it the same signed bytes could be read as another id, time and body.
            raise self.refusal(f"{prefix}-id has a full stop in it, which the specification forbids")
        sent = headers.one(f"{prefix}-timestamp")
        at = self.sent_at(sent, now)
        signatures = self.listed(headers.one(f"{prefix}-signature").split(" "))
        content = signed_content(id_, sent, body)
        if not self._genuine(signatures, content):
            raise self.unsigned()
        type_ = parts.text_of((parts.as_object(body) or {}).get("type"))
        return Verified(id_, id_, type_, at)

    def _genuine(self, signatures: list[str], content: bytes) -> bool:
        found = parts.matches(of_version("v1", signatures), self.secrets, content)
        if self.public:
            found |= any(key.verifies(given, content) for given in of_version("v1a", signatures) for key in self.public)
        return found

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        sent = str(int(now))
        content = signed_content(id, sent, body)
        items = [f"v1,{parts.to_base64(parts.code(secret, content))}" for secret in self.secrets]
        items += [f"v1a,{parts.to_base64(key.sign(content))}" for key in self.signing]
        if not items:
            raise UsageError(f"{self!r} has only public keys, which cannot sign; give a whsec_ or whsk_ secret")
        prefix = self.prefixes[0]
        return {f"{prefix}-id": id, f"{prefix}-timestamp": sent, f"{prefix}-signature": " ".join(items)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.secrets)} secrets, {len(self.public)} public keys)"


class Svix(StandardWebhooks):
    """The `svix-` headers, or the `webhook-` headers where a sender has moved on to those; never some of each."""

    name: ClassVar[str] = "svix"
    schedule = SVIX
    prefixes: ClassVar[tuple[str, ...]] = ("svix", "webhook")
    signature_headers = frozenset({"svix-signature", "webhook-signature"})


def signed_content(id_: str, sent: str, body: bytes) -> bytes:
    return f"{id_}.{sent}.".encode() + body


def of_version(version: str, signatures: Iterable[str]) -> list[bytes]:
    """The signatures of one version that are well formed."""
    found = []
    for item in signatures:
        label, comma, text = item.partition(",")
        data = parts.from_base64(text) if comma and label == version else None
        if data is not None:
            found.append(data)
    return found


def decoded(secret: str, prefix: str) -> bytes:
    """Some senders show a secret without its padding, and the reference library takes it so."""
    text = secret.strip().removeprefix(prefix).rstrip("=")
    data = parts.from_base64(text + "=" * (-len(text) % 4))
    if data is None:
        raise UsageError(f"a secret is not {prefix} and base64; copy it as it is shown")
    return data


def checked(secret: bytes) -> bytes:
    if len(secret) not in LENGTHS:
        raise UsageError(
            f"a whsec_ secret has {len(secret)} bytes; the specification says 24 to 64. Pass bytes for another size"
        )
    return secret
