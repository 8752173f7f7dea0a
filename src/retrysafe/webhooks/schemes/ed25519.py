"""ed25519 keys, through `cryptography`, which is imported only if such a key is used."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrysafe.errors import MissingDriver, UsageError

KEY_BYTES = 32


class PublicKey(NamedTuple):
    """A sender's public key. It verifies signatures and cannot make them."""

    raw: Any

    def verifies(self, signature: bytes, content: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self.raw.verify(signature, content)
        except InvalidSignature:  # also for a signature of another length
            return False
        return True


class SigningKey(NamedTuple):
    """A secret key, for senders and tests."""

    raw: Any

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.raw.public_key())

    def sign(self, content: bytes) -> bytes:
        signature: bytes = self.raw.sign(content)
        return signature


def load_public_key(data: bytes) -> PublicKey:
    if len(data) != KEY_BYTES:
        raise UsageError(f"a whpk_ key has {len(data)} bytes; an ed25519 public key has {KEY_BYTES}")
    return PublicKey(_import_ed25519().Ed25519PublicKey.from_public_bytes(data))


def load_signing_key(data: bytes) -> SigningKey:
    """A secret key, alone or followed by its public half, as Svix writes it."""
    if len(data) not in (KEY_BYTES, 2 * KEY_BYTES):
        raise UsageError(
            f"a whsk_ key has {len(data)} bytes; an ed25519 secret key has {KEY_BYTES}, or {2 * KEY_BYTES} with both"
        )
    return SigningKey(_import_ed25519().Ed25519PrivateKey.from_private_bytes(data[:KEY_BYTES]))


def _import_ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingDriver("ed25519", "cryptography", "webhooks", "an ed25519 key") from error
    return ed25519
