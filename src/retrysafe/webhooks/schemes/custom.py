"""Any other sender that signs with an HMAC, described by names of headers and fields, without code.

    Custom("acme", "secret", signature="X-Acme-Signature", prefix="sha256=", content="{timestamp}.{body}",
           timestamp="X-Acme-Time", id_field="event.id", type_field="event.type")

An id in a header identifies the event alone only if `content` contains `{id}`; else together with the signed body.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Literal

from retrysafe.errors import UsageError
from retrysafe.webhooks.schedules import UNKNOWN, Schedule
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import MAX_BODY_BYTES, TOLERANCE_SECONDS, Scheme, Secret, Verified, bind_id_to_body
from retrysafe.webhooks.schemes.headers import Headers

Encoding = Literal["hex", "base64"]

_DECODE: dict[str, Callable[[str], bytes | None]] = {"hex": parts.decode_hex, "base64": parts.decode_base64}
_PIECE = re.compile(r"(\{id\}|\{timestamp\}|\{body\})")


class Custom(Scheme):
    """An HMAC scheme as settings. Names that end in `_field` are paths in the signed JSON body: `"data.event.id"`."""

    def __init__(
        self,
        name: str,
        *secrets: Secret,
        signature: str,
        prefix: str = "",
        encoding: Encoding = "hex",
        algorithm: str = "sha256",
        separator: str = "",
        content: str = "{body}",
        timestamp: str = "",
        id_header: str = "",
        id_field: str = "",
        type_header: str = "",
        type_field: str = "",
        tolerance: float = TOLERANCE_SECONDS,
        schedule: Schedule = UNKNOWN,
        max_body: int = MAX_BODY_BYTES,
    ) -> None:
        super().__init__(*secrets, tolerance=tolerance)
        self.name = check_sender_name(name)  # type: ignore[misc]  # each custom sender has a name of its own
        self.signature = signature
        self.prefix = prefix
        self.encoding = encoding
        self.algorithm = algorithm
        self.separator = separator
        self.pieces = [piece for piece in _PIECE.split(content) if piece]
        self.timestamp = timestamp
        self.id_header = id_header
        self.id_field = id_field
        self.type_header = type_header
        self.type_field = type_field
        self.schedule = schedule
        self.max_body = max_body
        self.signature_headers = frozenset({signature.lower()})
        self._check()

    def _check(self) -> None:
        if self.encoding not in _DECODE:
            raise UsageError(f"Custom(encoding={self.encoding!r}): choose 'hex' or 'base64'")
        if self.algorithm not in hashlib.algorithms_guaranteed or self.algorithm.startswith("shake"):
            raise UsageError(f"Custom(algorithm={self.algorithm!r}) is not a digest every Python has; 'sha256' is one")
        if self.pieces.count("{body}") != 1 or any(self.pieces.count(name) > 1 for name in ("{id}", "{timestamp}")):
            raise UsageError("Custom(content=…) has {body} once, and {id} and {timestamp} at most once")
        if self.pieces[-1] != "{body}":
            # An attacker may control much of the body. With another part after it, the body could seem to end early.
            raise UsageError("Custom(content=…) must end with {body}; write a Scheme of your own for another order")
        if ("{timestamp}" in self.pieces) != bool(self.timestamp):
            raise UsageError(
                "Custom(): timestamp='X-…' and {timestamp} in content go together: an unsigned time proves nothing"
            )
        if bool(self.id_header) == bool(self.id_field):
            raise UsageError("Custom(): say where the event's id is: id_header='X-…' or id_field='path.in.body'")
        if "{id}" in self.pieces and not self.id_header:
            raise UsageError("Custom(): {id} in content is the id of a header; give id_header='X-…'")

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        timestamp = headers.require(self.timestamp) if self.timestamp else ""
        sent_at = self.parse_timestamp(timestamp, now) if self.timestamp else None
        header_id = self.check_id(headers.require(self.id_header), self.id_header) if self.id_header else ""
        if not parts.has_valid_code(
            self._read_signatures(headers),
            self.secrets,
            self._build_signed_content(header_id, timestamp, body),
            self.algorithm,
        ):
            raise self.unsigned_error()
        payload = parts.parse_object(body) or {}
        id_ = header_id or self.check_id(get_path(payload, self.id_field), f"`{self.id_field}` in the body")
        signed = not header_id or "{id}" in self.pieces
        type_ = headers.get(self.type_header) or "" if self.type_header else ""
        return Verified(
            id_,
            id_ if signed else bind_id_to_body(id_, body),
            type_ or parts.text_or_empty(get_path(payload, self.type_field)),
            sent_at,
        )

    def _read_signatures(self, headers: Headers) -> list[bytes | None]:
        text = headers.require(self.signature)
        items = self.check_signature_count(text.split(self.separator)) if self.separator else [text]
        stripped = [item.strip(" ") for item in items]
        decode = _DECODE[self.encoding]
        return [decode(item.removeprefix(self.prefix)) for item in stripped if item.startswith(self.prefix)]

    def _build_signed_content(self, id_: str, timestamp: str, body: bytes) -> bytes:
        values = {"{id}": id_.encode(), "{timestamp}": timestamp.encode(), "{body}": body}
        return b"".join(values.get(piece, piece.encode()) for piece in self.pieces)

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        timestamp = str(int(now))
        code = parts.compute_hmac(self.secrets[0], self._build_signed_content(id, timestamp, body), self.algorithm)
        headers = {self.signature: self.prefix + (code.hex() if self.encoding == "hex" else parts.encode_base64(code))}
        for name, value in ((self.timestamp, timestamp), (self.id_header, id), (self.type_header, type)):
            if name:
                headers[name] = value
        return headers


def check_sender_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        raise UsageError(f"Custom({name!r}): give the sender a name of lower-case letters, digits, '.', '_' and '-'")
    return name


def get_path(payload: Any, path: str) -> Any:
    """The value at a path such as `data.event.id`; None if there is none."""
    for name in path.split("."):
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload
