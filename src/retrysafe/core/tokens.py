"""The tokens of ended attempts as one value: in a row, each behind its length in one byte."""

from __future__ import annotations

from collections.abc import Iterable


def pack_tokens(tokens: Iterable[bytes]) -> bytes:
    return b"".join([b"%c%b" % (len(token), token) for token in tokens])


def unpack_tokens(data: bytes) -> tuple[bytes, ...]:
    """Raises ValueError for what was not packed by us."""
    tokens, start = [], 0
    while start < len(data):
        end = start + 1 + data[start]
        if end > len(data):
            raise ValueError("its ended tokens are cut off")
        tokens.append(data[start + 1 : end])
        start = end
    return tuple(tokens)
