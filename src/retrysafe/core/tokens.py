"""The tokens of a record's attempts as one value: in a row, each behind its length in one byte.

A claim writes its own token down with those of the attempts before it. So it is still there when a process of the
release before, which knows nothing of the list, takes the record over (rule 17).
"""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.core.records import MAX_ENDED_TOKENS


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


def past_tokens(noted: Iterable[bytes], token: bytes) -> tuple[bytes, ...]:
    """Of what was noted, the tokens of attempts before the present one, which has `token`."""
    return tuple([each for each in noted if each != token])[:MAX_ENDED_TOKENS]
