"""A fast encoder for the operations of every request. It packs many operations into one run of a script.

The bytes are those that `CALLS` (commands.py) would produce; tests/stores/test_redis_packing.py compares them.
One format string costs a third of building a call tuple, a command tuple and walking over it. That is a seventh of all
the Python that a claim and its completion run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from retrysafe.core.ops import Claim, Complete, Release, Withdraw
from retrysafe.core.states import OnLapse
from retrysafe.stores.redis.commands import LAPSES, WITHDRAWN
from retrysafe.stores.redis.layout import Layout, load_script
from retrysafe.stores.redis.rows import encode_alternatives, encode_answer, encode_born, encode_number, encode_text

ScriptGroup = tuple[str, bytes, bytes]
"""Operations with the same group share one run: the script, the bucket's index keys (encoded), the time."""
PackedOp = tuple[ScriptGroup, bytes, bytes, bytes]
"""One operation: its group, then the record's key and its own arguments, both encoded. Last, of a claim, the fixed
fields of the record that it would create: a replay is recognised by them (`rows.read_met_record`)."""

_OWN_ARGS = {"claim": 7, "settle": 6}
_KEY = b"$%d\r\n%b%b\r\n"
_CLAIM_ARGS = b"$%d\r\n%b\r\n%b" + b"$%d\r\n%b\r\n" * 3  # the token, `_encode_times`, three more
_SETTLE_ARGS = b"$%d\r\n%b\r\n" * _OWN_ARGS["settle"]
MAX_REMEMBERED_TIMES = 128
_RUN = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n%b%b$%d\r\n%b\r\n%b"


def _pack_claim(op: Claim, layout: Layout) -> PackedOp:
    token, born, times = op.token, encode_born(op), _encode_times(op.lease, op.on_lapse, op.retention)
    run_or_input = op.resumes or op.input
    others = encode_alternatives(op) if op.alternatives or op.resumes else b""
    args = _CLAIM_ARGS % (
        *(len(token), token, times, len(born), born, len(run_or_input), run_or_input, len(others), others),
    )
    record, head, indexes = layout.packed_record_keys(op.id)
    now = b"" if op.now is None else encode_number(op.now)
    return ("claim", indexes, now), _KEY % (len(head) + len(record), head, record), args, born


@lru_cache(MAX_REMEMBERED_TIMES)
def _encode_times(lease: int, on_lapse: OnLapse, retention: int) -> bytes:
    """The arguments that all claims under one policy share. Cached: an application has a few policies."""
    numbers = (encode_number(lease), LAPSES[on_lapse], encode_number(retention))
    return b"".join([b"$%d\r\n%b\r\n" % (len(number), number) for number in numbers])


def _pack_complete(op: Complete, layout: Layout) -> PackedOp:
    return _pack_settle(op, layout, b"3", b"", encode_answer(op.answer))


def _pack_release(op: Release, layout: Layout) -> PackedOp:
    return _pack_settle(op, layout, b"2", encode_text(op.note), b"")


def _pack_withdraw(op: Withdraw, layout: Layout) -> PackedOp:
    return _pack_settle(op, layout, WITHDRAWN, encode_text(op.note), b"")


def _pack_settle(
    op: Complete | Release | Withdraw, layout: Layout, target: bytes, note: bytes, answer: bytes
) -> PackedOp:
    attempt, token = op.fence
    number = b"%d" % attempt
    args = _SETTLE_ARGS % (
        *(len(number), number, len(token), token, 1, target, 1, b"0"),
        *(len(note), note, len(answer), answer),
    )
    record, head, indexes = layout.packed_record_keys(op.id)
    now = b"" if op.now is None else encode_number(op.now)
    return ("settle", indexes, now), _KEY % (len(head) + len(record), head, record), args, b""


def pack_script_run(group: ScriptGroup, operations: Sequence[PackedOp]) -> bytes:
    """Encode one EVALSHA command for all these operations."""
    name, indexes, now = group
    count = len(operations)
    keys = encode_number(2 + count)
    sizes = (4 + 2 + count + _OWN_ARGS[name] * count, load_script(name).sha, len(keys), keys)
    return _RUN % (
        *(*sizes, indexes, b"".join([each[1] for each in operations])),
        *(len(now), now, b"".join([each[2] for each in operations])),
    )


PACKERS: dict[type[Any], Callable[[Any, Layout], PackedOp]] = {
    Claim: _pack_claim,
    Complete: _pack_complete,
    Release: _pack_release,
    Withdraw: _pack_withdraw,
}
