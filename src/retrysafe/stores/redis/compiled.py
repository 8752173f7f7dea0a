"""The packers of a store's operations: those of packing.py, two of them with the compiled helper where it is installed.

The helper gives the bytes of packing.py, or None; tests/stores/test_redis_packing.py compares them. A claim that
resumes, or that has other forms of its fingerprint, is rare: packing.py does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrysafe.core.ops import Claim, Complete
from retrysafe.core.speedups import SPEEDUPS, Speedups
from retrysafe.stores.redis import packing
from retrysafe.stores.redis.commands import LAPSES
from retrysafe.stores.redis.layout import Layout
from retrysafe.stores.redis.packing import PackedOp
from retrysafe.stores.redis.rows import encode_number

Packers = dict[type[Any], Callable[[Any, Layout], PackedOp]]


def build_packers(speedups: Speedups | None) -> Packers:
    if speedups is None:
        return packing.PACKERS
    # Local names: each is looked up several times per request.
    encode_born, encode_answer = speedups.encode_born, speedups.encode_answer
    pack_key, pack_words = speedups.pack_key, speedups.pack_words
    define_claim, define_complete = packing.PACKERS[Claim], packing.PACKERS[Complete]

    def pack_claim(op: Claim, layout: Layout) -> PackedOp:
        if op.resumes or op.alternatives:
            return define_claim(op, layout)
        born = encode_born(*op.fingerprint, op.namespace, op.kind, op.scope, op.key, op.target, op.run)
        if born is None:
            return define_claim(op, layout)
        head, indexes = layout.packed_bucket(op.id)
        key = pack_key(head, op.id)
        args = pack_words(op.token, op.lease, LAPSES[op.on_lapse], op.retention, born, op.input, b"")
        if key is None or args is None:
            return define_claim(op, layout)
        return ("claim", indexes, b"" if op.now is None else encode_number(op.now)), key, args, born

    def pack_complete(op: Complete, layout: Layout) -> PackedOp:
        attempt, token = op.fence
        answer = op.answer
        encoded = encode_answer(answer.status, answer.body, answer.headers, answer.gone)
        if encoded is None:
            return define_complete(op, layout)
        head, indexes = layout.packed_bucket(op.id)
        key = pack_key(head, op.id)
        args = pack_words(attempt, token, b"3", b"0", b"", encoded)
        if key is None or args is None:
            return define_complete(op, layout)
        return ("settle", indexes, b"" if op.now is None else encode_number(op.now)), key, args, b""

    return {**packing.PACKERS, Claim: pack_claim, Complete: pack_complete}


PACKERS = build_packers(SPEEDUPS)
