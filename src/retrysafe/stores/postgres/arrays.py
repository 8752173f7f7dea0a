"""Python values as PostgreSQL's binary arrays: one bytes object per column of a batch.

This module packs them because psycopg examines the type of each element, which takes ten times as long for a batch. The
format is binary, so that the server need not parse quotes and hexadecimal digits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from retrysafe.core.records import Fingerprint

_pack_head = struct.Struct("!iiIii").pack
"""Number of dimensions, flag for NULLs, element type, number of elements, index of the first element."""

_pack_length = struct.Struct("!i").pack
_BYTEA, _BIGINT, _INTEGER, _TEXT = 17, 20, 23, 25

Pack = Callable[[Sequence[Any]], bytes]


def pack_number(value: int) -> bytes:
    """One bigint, not an array."""
    return value.to_bytes(8, "big", signed=True)


def pack_bytea(values: Sequence[bytes]) -> bytes:
    return _pack_elements(_BYTEA, values)


def pack_text(values: Sequence[str]) -> bytes:
    """Raises UnicodeError for text that UTF-8 cannot encode (half a surrogate pair). The server refuses a NUL."""
    first = values[0]
    if values.count(first) == len(values):  # namespaces, kinds, targets: most batches have one value
        return _pack_equal(_TEXT, first.encode(), len(values))
    return _pack_elements(_TEXT, [value.encode() for value in values])


def pack_fingerprints(values: Sequence[Fingerprint]) -> bytes:
    return pack_text([str(value) for value in values])


def pack_bigint(values: Sequence[int]) -> bytes:
    return _pack_numbers(_BIGINT, "iq", 8, values)


def pack_integer(values: Sequence[int]) -> bytes:
    return _pack_numbers(_INTEGER, "ii", 4, values)


def _pack_elements(kind: int, values: Sequence[bytes]) -> bytes:
    head = _pack_head(1, 0, kind, len(values), 1)
    lengths = set(map(len, values))
    if len(lengths) == 1:  # ids, tokens, runs, fingerprints
        prefix = _pack_length(lengths.pop())
        return head + prefix + prefix.join(values)
    parts = [head]
    for value in values:
        parts += (_pack_length(len(value)), value)
    return b"".join(parts)


def _pack_equal(kind: int, value: bytes, count: int) -> bytes:
    return _pack_head(1, 0, kind, count, 1) + (_pack_length(len(value)) + value) * count


def _pack_numbers(kind: int, pair: str, size: int, values: Sequence[int]) -> bytes:
    first = values[0]
    if values.count(first) == len(values):  # leases, retentions, attempts
        return _pack_equal(kind, struct.pack("!" + pair[1:], first), len(values))
    flat = [part for value in values for part in (size, value)]
    return _pack_head(1, 0, kind, len(values), 1) + struct.pack("!" + pair * len(values), *flat)
