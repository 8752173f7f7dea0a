"""The `Idempotency-Key` header: reading, rules for keys, generating and quoting a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrysafe.core.keys import MAX_KEY_CHARS, parse_key
from retrysafe.errors import MalformedKey, UsageError

DEFAULT_HEADER = "Idempotency-Key"

# A pattern, because uuid.UUID() also accepts braces, `urn:uuid:` and hyphens anywhere.
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")
_UUID_FIX = "send a new UUID for each operation, with its hyphens or without, and the same one with each retry"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Rules for keys beyond the grammar. They stop clients that use 1, 2, 3 … as keys (S6)."""

    min_length: int = 1
    uuid: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= MAX_KEY_CHARS:
            raise UsageError(f"KeyRule(min_length={self.min_length}): give 1 to {MAX_KEY_CHARS}")

    def check(self, key: str) -> None:
        if self.uuid and not _UUID.fullmatch(key):
            raise MalformedKey(key, "this server takes only UUIDs", _UUID_FIX)
        if len(key) < self.min_length:
            raise MalformedKey(
                key,
                f"it has {len(key)} characters, and this server asks for at least {self.min_length}",
                f"send {self.min_length} to {MAX_KEY_CHARS} visible ASCII characters that nobody can guess: a UUID",
            )


def read_key(lines: Sequence[str], rule: KeyRule) -> str | None:
    """The key in these header lines; None if there are no lines. An empty header is malformed, not "no key"."""
    if not lines:
        return None
    if len(lines) > 1:
        raise MalformedKey(", ".join(lines), f"{len(lines)} header lines were sent", "send exactly one")
    key = parse_key(lines[0])
    if rule.uuid or rule.min_length > 1:
        rule.check(key)
    return key


def quote_key(key: str) -> str:
    """The key as an RFC 8941 string, for a response header."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
