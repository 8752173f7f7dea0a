"""The operations that every request makes, packed by hand, and many of them into one run of a script.

`ASK` says what to send, and for these it would say the same (tests/stores/test_redis_packing.py compares the bytes).
But a tuple for the call, a tuple for the command and a walk over it cost three times what one format does, and with
the rest as it is that is a seventh of all the Python a claim and its completion need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrysafe.core.ops import Claim, Complete, Release, Withdraw
from retrysafe.stores.redis.commands import LAPSES, WITHDRAWN
from retrysafe.stores.redis.layout import Layout, script
from retrysafe.stores.redis.rows import alternative_parts, answer_parts, born_parts, number, text

Group = tuple[str, bytes, bytes]
"""What goes into one run: the script, its bucket's indexes (packed), the moment."""
Piece = tuple[Group, bytes, bytes]
"""One operation: its group, the record's key and its own arguments, both packed."""

_OWN = {"claim": 7, "settle": 6}
_KEY = b"$%d\r\n%b%b\r\n"
_ARGS = {name: b"$%d\r\n%b\r\n" * count for name, count in _OWN.items()}
_RUN = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n%b%b$%d\r\n%b\r\n%b"


def _claim(op: Claim, layout: Layout) -> Piece:
    token, lease, retention, born = op.token, number(op.lease), number(op.retention), born_parts(op)
    given = op.resumes or op.input
    others = alternative_parts(op)
    args = _ARGS["claim"] % (
        *(len(token), token, len(lease), lease, 1, LAPSES[op.on_lapse]),
        *(len(retention), retention, len(born), born, len(given), given, len(others), others),
    )
    return _piece("claim", op, layout, args)


def _complete(op: Complete, layout: Layout) -> Piece:
    return _settle(op, layout, b"3", b"", answer_parts(op.answer))


def _release(op: Release, layout: Layout) -> Piece:
    return _settle(op, layout, b"2", text(op.note), b"")


def _withdraw(op: Withdraw, layout: Layout) -> Piece:
    return _settle(op, layout, WITHDRAWN, text(op.note), b"")


def _settle(op: Complete | Release | Withdraw, layout: Layout, target: bytes, note: bytes, answer: bytes) -> Piece:
    attempt, token = number(op.fence.attempt), op.fence.token
    args = _ARGS["settle"] % (
        *(len(attempt), attempt, len(token), token, 1, target, 1, b"0"),
        *(len(note), note, len(answer), answer),
    )
    return _piece("settle", op, layout, args)


def _piece(name: str, op: Claim | Complete | Release | Withdraw, layout: Layout, args: bytes) -> Piece:
    record, head, indexes = layout.packed(op.id)
    now = b"" if op.now is None else number(op.now)
    return (name, indexes, now), _KEY % (len(head) + len(record), head, record), args


def run(group: Group, pieces: Sequence[Piece]) -> bytes:
    """One command for all of them."""
    name, indexes, now = group
    count = len(pieces)
    keys = number(2 + count)
    sizes = (4 + 2 + count + _OWN[name] * count, script(name).sha, len(keys), keys)
    return _RUN % (
        *(*sizes, indexes, b"".join([piece[1] for piece in pieces])),
        *(len(now), now, b"".join([piece[2] for piece in pieces])),
    )


PACK: dict[type[Any], Callable[[Any, Layout], Piece]] = {
    Claim: _claim,
    Complete: _complete,
    Release: _release,
    Withdraw: _withdraw,
}
