"""The fast encoder (packing.py) produces the same bytes as commands.py and hiredis."""

from __future__ import annotations

from typing import Any

import pytest
from hiredis import pack_command

from retrysafe.core.ops import Claim, Complete, Release, Withdraw
from retrysafe.core.records import Answer, Fence, Fingerprint
from retrysafe.stores.redis import compiled
from retrysafe.stores.redis.commands import CALLS, plan_operation
from retrysafe.stores.redis.layout import Layout
from retrysafe.stores.redis.packing import PACKERS, pack_script_run
from retrysafe.stores.redis.rows import _HEAD, encode_answer, encode_born, read_met_record, read_record
from retrysafe.stores.redis.wire import MAX_SCRIPT_BYTES, chunk_slices, merge_plans
from retrysafe.testing.builders import claim

ANSWERS = (
    Answer(204),
    Answer(201, {"order": 7}),
    Answer(200, b"\r\n$3\r\n%b%d" * 9, [("x-é", "ключ \udcff"), ("set", "")]),
    Answer(500, b"", (), "too_large"),
)
OPS = [
    *(
        claim("k", now=now, on_lapse=lapse)
        for now in (None, -3, 0, 10**9)
        for lapse in ("uncertain", "resume", "rerun")
    ),
    claim("k", target="ключ \ud800", input=b"*3\r\n" * 50, retention=float("inf")),
    *(
        Complete(claim("k").id, Fence(attempt, b"t" * 16), answer, now)
        for attempt, answer in enumerate(ANSWERS, 9)
        for now in (None, 5)
    ),
    Release(claim("k").id, Fence(3, b"t"), "ключ", None),
    Withdraw(claim("k").id, Fence(1, b"t"), "ключ", None),
]


@pytest.mark.parametrize("layout", [Layout(), Layout("a:", 256)], ids=["one bucket", "many"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("packers", [PACKERS, compiled.PACKERS], ids=["definition", "compiled, if it is there"])
def test_the_bytes_are_the_same(packers: compiled.Packers, op: Any, layout: Layout) -> None:
    piece = packers[type(op)](op, layout)
    assert pack_script_run(piece[0], [piece]) == pack_command(CALLS[type(op)](op, layout).build_command())


def test_many_in_one_run_are_what_their_calls_make_together() -> None:
    """The pipe and the pooled connections build the same script run."""
    layout = Layout()
    ops = [claim(f"k{number}", now=None) for number in range(130)]
    pieces = [PACKERS[Claim](op, layout) for op in ops]
    sent = next(merge_plans([plan_operation(op, layout) for op in ops], "Redis"))
    assert [pack_command(command) for command in sent] == [
        pack_script_run(pieces[0][0], pieces[:128]),
        pack_script_run(pieces[0][0], pieces[128:]),
    ]


BEFORE = claim("k", run=b"r" * 16)


@pytest.mark.parametrize(
    "met",
    [
        BEFORE,
        claim("k", run=b"s" * 16),
        claim("k", run=b"short"),
        claim("k", target="another"),
        claim("k", fingerprint=Fingerprint("json1", b"o" * 32, 5)),
        claim("k", target="ключ \ud800"),
    ],
    ids=["same", "other run", "run of another size", "other target", "other request", "not ASCII"],
)
@pytest.mark.parametrize("asking", [BEFORE, claim("k", target="ключ \ud800")], ids=["ASCII", "not ASCII"])
def test_a_met_record_is_read_as_any_record_is(asking: Claim, met: Claim) -> None:
    """The fixed fields are not decoded if they are the claim's own. The record is the same, mismatches included."""
    head = _HEAD.pack(3, 0, 0, 0, 1, 10, 1, 1, 2, 99, 5) + b"t" * 16
    found = [b"h", head, b"b", encode_born(met), b"a", encode_answer(ANSWERS[2])]
    sent = PACKERS[Claim](asking, Layout())[3]
    assert read_met_record(asking, found, sent) == read_record(asking.id, found)
    assert read_met_record(asking, found, b"") == read_record(asking.id, found)


def test_what_cannot_be_one_run_is_none() -> None:
    layout = Layout("a:", 2)
    ops = [claim(f"k{number}", now=now) for number in range(9) for now in (None, 1)]
    buckets = {op.id[0] % 2 for op in ops}
    assert len(buckets) == 2
    assert len({PACKERS[Claim](op, layout)[0] for op in ops}) == 4
    assert len(next(merge_plans([plan_operation(op, layout) for op in ops], "Redis"))) == 4


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([], []),
        ([5], [1]),
        ([10] * 300, [128, 128, 44]),
        ([MAX_SCRIPT_BYTES, 1, 1], [1, 2]),
        ([2 * MAX_SCRIPT_BYTES, 3 * MAX_SCRIPT_BYTES], [1, 1]),
        ([MAX_SCRIPT_BYTES // 2] * 5, [2, 2, 1]),
    ],
)
def test_a_run_is_bounded_in_number_and_in_bytes(sizes: list[int], runs: list[int]) -> None:
    parts = [sizes[some] for some in chunk_slices(sizes)]
    assert [len(part) for part in parts] == runs
    assert [size for part in parts for size in part] == sizes


def test_all_are_tried_here() -> None:
    assert set(PACKERS) == {type(op) for op in OPS}
