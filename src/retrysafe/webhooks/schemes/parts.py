"""The parts of schemes: strict decoding, HMAC codes, comparison. A decoder returns None for malformed input."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

MAX_SIGNATURES = 32
"""More than any rotation needs. Counted before the first HMAC is computed (S20)."""

MAX_ID_CHARS = 255

_DIGITS = re.compile(r"[0-9]{1,12}")  # `int` also accepts "+1", "1_0", " 1" and digits of other scripts
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID_CHARS}}}")


def parse_seconds(text: str) -> int | None:
    """A time in whole seconds since 1970: ASCII digits only."""
    return int(text) if _DIGITS.fullmatch(text) else None


def decode_hex(text: str) -> bytes | None:
    """Lower-case hex, as every sender writes it."""
    return bytes.fromhex(text) if _HEX.fullmatch(text) else None


def decode_base64(text: str) -> bytes | None:
    """Base64 in its canonical spelling: no white space, no missing padding, no stray bits."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if encode_base64(data) == text else None


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def compute_hmac(secret: bytes, content: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.digest(secret, content, algorithm)


def has_valid_code(
    codes: Iterable[bytes | None], secrets: Sequence[bytes], content: bytes, algorithm: str = "sha256"
) -> bool:
    """Whether one of the given codes was made with one of the secrets. All are compared, each in constant time, so the
    time taken does not reveal which secret or signature matched."""
    expected = [compute_hmac(secret, content, algorithm) for secret in secrets]
    found = False
    for code in codes:
        if code is not None:
            for expected_code in expected:
                found |= hmac.compare_digest(code, expected_code)
    return found


def hash_body(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def parse_id(value: Any) -> str | None:
    """An id that can be a key: visible ASCII, 1 to 255 characters."""
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def parse_object(body: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else, including deep nesting, enormous numbers and broken text."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def text_or_empty(value: Any) -> str:
    """The value if it is text, else an empty text: an event without a type."""
    return value if isinstance(value, str) else ""
