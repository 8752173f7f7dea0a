"""A fast encoder for the operations of every request. It packs many operations into one run of a script.

The bytes are those that `CALLS` (commands.py) would produce; tests/stores/test_redis_packing.py compares them.
Joining the words costs a fifth of building a call tuple, a command tuple and walking over it.
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
MAX_REMEMBERED_TIMES = 128
MAX_REMEMBERED_RUNS = 256
"""Two scripts, each with up to `wire.MAX_SCRIPT_OPS` operations."""

MAX_KNOWN_SIZE, TOKEN_BYTES = 1_024, 16
_SIZES = [b"$%d\r\n" % size for size in range(MAX_KNOWN_SIZE)]
"""The line before a word, by the word's size. Joining words costs a third of one format string for all of them."""
_TOKEN_SIZE = _SIZES[TOKEN_BYTES]
_NOTHING = b"$0\r\n\r\n"


def _pack_word(word: bytes) -> bytes:
    """One word of a command, as RESP."""
    return b"%b%b\r\n" % (_size_of(word), word)


def _size_of(word: bytes) -> bytes:
    return b"$%d\r\n" % len(word)


def _pack_claim(op: Claim, layout: Layout) -> PackedOp:
    token, born = op.token, encode_born(op)
    rest = _NO_REST
    if op.input or op.alternatives or op.resumes:
        rest = b"\r\n" + _pack_word(op.resumes or op.input) + _pack_word(encode_alternatives(op))
    times = _encode_times(op.lease, op.on_lapse, op.retention)
    # The sizes by hand: every new key comes here, and a call costs as much as the rest of such a line.
    born_size = _SIZES[len(born)] if len(born) < MAX_KNOWN_SIZE else _size_of(born)
    args = b"".join(
        (_TOKEN_SIZE if len(token) == TOKEN_BYTES else _size_of(token), token, times, born_size, born, rest)
    )
    key, indexes = layout.packed_keys(op.id)
    return ("claim", indexes, b"" if op.now is None else encode_number(op.now)), key, args, born


_NO_REST = b"\r\n" + _NOTHING * 2
"""The end of the arguments of a claim without input and without other forms of its fingerprint."""


@lru_cache(MAX_REMEMBERED_TIMES)
def _encode_times(lease: int, on_lapse: OnLapse, retention: int) -> bytes:
    """The arguments that all claims under one policy share, and the line's end before them. Cached: an application has
    a few policies."""
    return b"\r\n" + b"".join(map(_pack_word, (encode_number(lease), LAPSES[on_lapse], encode_number(retention))))


def _pack_complete(op: Complete, layout: Layout) -> PackedOp:
    return _pack_settle(op, layout, _COMPLETE, encode_answer(op.answer))


def _pack_release(op: Release, layout: Layout) -> PackedOp:
    return _pack_settle(op, layout, _RELEASE + _pack_word(encode_text(op.note)), b"")


def _pack_withdraw(op: Withdraw, layout: Layout) -> PackedOp:
    return _pack_settle(op, layout, _WITHDRAW + _pack_word(encode_text(op.note)), b"")


# What follows the token: the target's number and "any state"; of a completion the empty note, too.
_COMPLETE = b"\r\n$1\r\n3\r\n$1\r\n0\r\n" + _NOTHING
_RELEASE = b"\r\n$1\r\n2\r\n$1\r\n0\r\n"
_WITHDRAW = b"\r\n$1\r\n%b\r\n$1\r\n0\r\n" % WITHDRAWN


def _pack_settle(op: Complete | Release | Withdraw, layout: Layout, middle: bytes, answer: bytes) -> PackedOp:
    attempt, token = op.fence
    number = _FIRST_ATTEMPT if attempt == 1 else _pack_word(b"%d" % attempt)
    token_size = _TOKEN_SIZE if len(token) == TOKEN_BYTES else _size_of(token)
    answer_size = _SIZES[len(answer)] if len(answer) < MAX_KNOWN_SIZE else _size_of(answer)
    args = b"".join((number, token_size, token, middle, answer_size, answer, b"\r\n"))
    key, indexes = layout.packed_keys(op.id)
    return ("settle", indexes, b"" if op.now is None else encode_number(op.now)), key, args, b""


_FIRST_ATTEMPT = b"$1\r\n1\r\n"


def pack_script_run(group: ScriptGroup, operations: Sequence[PackedOp]) -> bytes:
    """Encode one EVALSHA command for all these operations."""
    name, indexes, now = group
    parts = [_begin_run(name, len(operations)), indexes]
    parts += [each[1] for each in operations]
    parts.append(_pack_word(now) if now else _NOTHING)
    parts += [each[2] for each in operations]
    return b"".join(parts)


@lru_cache(MAX_REMEMBERED_RUNS)
def _begin_run(name: str, count: int) -> bytes:
    """The words of a run before its keys: the number of all words, the script, the number of keys."""
    words = 4 + 2 + count + _OWN_ARGS[name] * count
    return b"*%d\r\n" % words + b"".join(map(_pack_word, (b"EVALSHA", load_script(name).sha, encode_number(2 + count))))


PACKERS: dict[type[Any], Callable[[Any, Layout], PackedOp]] = {
    Claim: _pack_claim,
    Complete: _pack_complete,
    Release: _pack_release,
    Withdraw: _pack_withdraw,
}
