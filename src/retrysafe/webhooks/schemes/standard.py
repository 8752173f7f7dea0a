"""Standard Webhooks 1.0, and Svix, which is the same under other header names.

Signed is `{id}.{timestamp}.{body}`. The signature header is a list separated by spaces: `v1,` and base64 of
HMAC-SHA256, or `v1a,` and base64 of an ed25519 signature. A malformed item, or one of an unknown version, is skipped:
another item may be valid. A version is tried only with secrets of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from retrysafe.errors import UsageError
from retrysafe.webhooks.schedules import STANDARD, SVIX
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import TOLERANCE_SECONDS, Scheme, Secret, Verified, secret_to_bytes
from retrysafe.webhooks.schemes.ed25519 import PublicKey, SigningKey, load_public_key, load_signing_key
from retrysafe.webhooks.schemes.headers import Headers

SECRET_LENGTHS_BYTES = range(24, 65)
"""The length of a symmetric secret, as the specification says."""


class StandardWebhooks(Scheme):
    """`StandardWebhooks("whsec_…")`, or `"whpk_…"` for a sender that signs with ed25519 (needs retrysafe[webhooks]).

    A secret given as bytes is used unchanged.
    """

    name: ClassVar[str] = "standard-webhooks"
    schedule = STANDARD
    prefixes: ClassVar[tuple[str, ...]] = ("webhook",)
    signature_headers = frozenset({"webhook-signature"})

    def __init__(self, *secrets: Secret, tolerance: float = TOLERANCE_SECONDS) -> None:
        self.signing: list[SigningKey] = []
        self.public: list[PublicKey] = []
        super().__init__(*secrets, tolerance=tolerance)

    def prepare_secrets(self, secrets: tuple[Secret, ...]) -> tuple[bytes, ...]:
        symmetric = []
        for secret in secrets:
            if isinstance(secret, str) and secret.startswith("whsk_"):
                key = load_signing_key(decode_secret(secret, "whsk_"))
                self.signing.append(key)
                self.public.append(key.public)
            elif isinstance(secret, str) and secret.startswith("whpk_"):
                self.public.append(load_public_key(decode_secret(secret, "whpk_")))
            elif isinstance(secret, str):
                symmetric.append(check_secret_length(decode_secret(secret, "whsec_")))
            else:
                symmetric.append(secret_to_bytes(secret, type(self).__name__))
        return tuple(symmetric)

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        prefix = next((each for each in self.prefixes if f"{each}-id" in headers), self.prefixes[0])
        id_ = self.check_id(headers.require(f"{prefix}-id"), f"{prefix}-id")
        if "." in id_:
            # With a full stop in the id, the same signed bytes could be split into another id, time and body.
            raise self.verification_error(f"{prefix}-id has a full stop in it, which the specification forbids")
        timestamp = headers.require(f"{prefix}-timestamp")
        sent_at = self.parse_timestamp(timestamp, now)
        signatures = self.check_signature_count(headers.require(f"{prefix}-signature").split(" "))
        content = build_signed_content(id_, timestamp, body)
        if not self._is_genuine(signatures, content):
            raise self.unsigned_error()
        type_ = parts.text_or_empty((parts.parse_object(body) or {}).get("type"))
        return Verified(id_, id_, type_, sent_at)

    def _is_genuine(self, signatures: list[str], content: bytes) -> bool:
        found = parts.has_valid_code(decode_signatures("v1", signatures), self.secrets, content)
        if self.public:
            found |= any(
                key.verifies(given, content) for given in decode_signatures("v1a", signatures) for key in self.public
            )
        return found

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        timestamp = str(int(now))
        content = build_signed_content(id, timestamp, body)
        items = [f"v1,{parts.encode_base64(parts.compute_hmac(secret, content))}" for secret in self.secrets]
        items += [f"v1a,{parts.encode_base64(key.sign(content))}" for key in self.signing]
        if not items:
            raise UsageError(f"{self!r} has only public keys, which cannot sign; give a whsec_ or whsk_ secret")
        prefix = self.prefixes[0]
        return {f"{prefix}-id": id, f"{prefix}-timestamp": timestamp, f"{prefix}-signature": " ".join(items)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.secrets)} secrets, {len(self.public)} public keys)"


class Svix(StandardWebhooks):
    """The `svix-` headers, or the `webhook-` headers if a sender uses those; never some of each."""

    name: ClassVar[str] = "svix"
    schedule = SVIX
    prefixes: ClassVar[tuple[str, ...]] = ("svix", "webhook")
    signature_headers = frozenset({"svix-signature", "webhook-signature"})


def build_signed_content(id_: str, timestamp: str, body: bytes) -> bytes:
    return f"{id_}.{timestamp}.".encode() + body


def decode_signatures(version: str, signatures: Iterable[str]) -> list[bytes]:
    """The well-formed signatures of one version."""
    found = []
    for item in signatures:
        label, comma, text = item.partition(",")
        data = parts.decode_base64(text) if comma and label == version else None
        if data is not None:
            found.append(data)
    return found


def decode_secret(secret: str, prefix: str) -> bytes:
    """The bytes of a secret. Some senders show it without padding, and the reference library accepts that."""
    text = secret.strip().removeprefix(prefix).rstrip("=")
    data = parts.decode_base64(text + "=" * (-len(text) % 4))
    if data is None:
        raise UsageError(f"a secret is not {prefix} and base64; copy it as it is shown")
    return data


def check_secret_length(secret: bytes) -> bytes:
    if len(secret) not in SECRET_LENGTHS_BYTES:
        raise UsageError(
            f"a whsec_ secret has {len(secret)} bytes; the specification says 24 to 64. Pass bytes for another size"
        )
    return secret
