"""Python values as PostgreSQL's binary arrays: one bytes object per column of a batch.

This module packs them because psycopg examines the type of each element, which takes ten times as long for a batch. The
format is binary, so that the server need not parse quotes and hexadecimal digits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

_pack_head = struct.Struct("!iiIii").pack
"""Number of dimensions, flag for NULLs, element type, number of elements, index of the first element."""

_pack_length = struct.Struct("!i").pack
_BYTEA, _BIGINT, _INTEGER, _TEXT = 17, 20, 23, 25

Pack = Callable[[Sequence[Any]], bytes]


def pack_bytea(values: Sequence[bytes]) -> bytes:
    parts = [_pack_head(1, 0, _BYTEA, len(values), 1)]
    for value in values:
        parts += (_pack_length(len(value)), value)
    return b"".join(parts)


def pack_text(values: Sequence[str]) -> bytes:
    """Raises UnicodeError for text that UTF-8 cannot encode (half a surrogate pair). The server refuses a NUL."""
    first = values[0]
    if values.count(first) == len(values):  # namespaces, kinds, targets: most batches have one value
        value = first.encode()
        return _pack_head(1, 0, _TEXT, len(values), 1) + (_pack_length(len(value)) + value) * len(values)
    parts = [_pack_head(1, 0, _TEXT, len(values), 1)]
    for each in values:
        value = each.encode()
        parts += (_pack_length(len(value)), value)
    return b"".join(parts)


def pack_bigint(values: Sequence[int]) -> bytes:
    return _pack_head(1, 0, _BIGINT, len(values), 1) + _pack_numbers("iq", 8, values)


def pack_integer(values: Sequence[int]) -> bytes:
    return _pack_head(1, 0, _INTEGER, len(values), 1) + _pack_numbers("ii", 4, values)


def _pack_numbers(pair: str, size: int, values: Sequence[int]) -> bytes:
    flat = [part for value in values for part in (size, value)]
    return struct.pack("!" + pair * len(values), *flat)
