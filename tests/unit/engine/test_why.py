"""What `keys why` and the console say of a record: by its state, and by what its note says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.core.ops import Advance, Claim, Complete, Forget, Release, Suspect
from retrysafe.core.records import Record
from retrysafe.engine.why import BEGUN_BY_OTHER_CODE, explain
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim

SECOND = 1_000_000


def play(taken: Claim, *moves: Any) -> Record:
    """The record after a claim and further operations, each built from the record."""
    store = MemoryStore()
    record = store.execute(taken).record
    for move in moves:
        assert record is not None
        store.execute(move(record))
        record = store._records[taken.id]  # what it holds, whatever the kind
    assert record is not None
    return record


def run_claim(**options: Any) -> Claim:
    made = claim("k", kind="operation", target="order@1", **options)
    return replace(made, on_lapse="resume")


def release_at_charge(error: str, note: str = "") -> list[Any]:
    return [
        lambda record: Advance(record.id, record.fence, 1, "charge", b"{}", "resume", 5 * SECOND, now=1),
        lambda record: Release(record.id, record.fence, note or f"stopped at 'charge' by {error}", now=2),
    ]


@pytest.mark.parametrize(
    ("taken", "moves", "now", "texts", "actions"),
    [
        (claim("k", lease=60, now=1), [], 2, ("claimed", "at work since", "409"), ()),
        (claim("k", lease=1, on_lapse="rerun", now=1), [], 90, ("went silent", "runs it again"), ("keys release",)),
        (claim("k", lease=1, on_lapse="uncertain", now=1), [], 90, ("uncertain", "nobody knows"), ("keys resolve",)),
        (
            claim("k", lease=60, now=1),
            [lambda record: Suspect(record.id, record.fence, "no answer", now=2)],
            3,
            ("uncertain", "no answer", "outcome-unknown"),
            ("keys resolve",),
        ),
        (
            claim("k", lease=60, now=1),
            [lambda record: Complete(record.id, record.fence, Answer(201, b"{}"), now=2)],
            3,
            ("completed", "the stored answer (201)"),
            ("keys forget",),
        ),
        (
            claim("k", lease=60, now=1),
            [
                lambda record: Complete(record.id, record.fence, Answer(201, b"{}"), now=2),
                lambda record: Forget(record.id, record.fence, now=3),
            ],
            3,
            ("completed", "was not kept"),
            (),
        ),
        (
            run_claim(lease=60, now=1),
            release_at_charge("StepFailed"),
            3,
            (
                "released",
                "by StepFailed",
                "resumes it from recovery point 'charge' after 1970-01-01T00:00:02Z",
            ),
            ("operations resume", "operations undo", "operations cancel"),
        ),
        (
            run_claim(lease=60, now=1),
            release_at_charge("StepFailed"),
            600,
            ("released", "has been due since 1970-01-01T00:00:02Z: look whether a worker runs that declares 'order@1'"),
            ("operations resume", "operations undo", "operations cancel"),
        ),
        (
            run_claim(lease=60, now=1),
            [],
            90,
            ("went silent", "the worker does the same after 1970-01-01T00:06:01Z"),
            ("operations resume", "operations undo"),
        ),
        (
            run_claim(lease=60, now=1),
            [],
            3600,
            ("went silent", "has been due since 1970-01-01T00:06:01Z: look whether a worker runs"),
            ("operations resume", "operations undo"),
        ),
        (
            run_claim(lease=60, now=1),
            release_at_charge("OperationChanged"),
            3,
            ("refused attempt 1", "refused again by that code", "until code that fits runs"),
            ("operations show", "operations resume", "operations undo", "operations cancel"),
        ),
        (
            run_claim(lease=60, now=1),
            release_at_charge("OperationChanged", BEGUN_BY_OTHER_CODE + ", as 'order@1'"),
            3,
            ("refused attempt 1", "refused again by that code", "until code that fits runs"),
            ("operations show", "operations resume", "operations undo", "operations cancel"),
        ),
        (
            run_claim(lease=0, now=1),
            [],
            3,
            ("it was submitted at", "no worker has started it", "the worker starts it"),
            ("operations resume", "operations cancel"),
        ),
    ],
)
def test_what_is_said(
    taken: Claim, moves: Sequence[Any], now: int, texts: tuple[str, ...], actions: tuple[str, ...]
) -> None:
    found = explain(play(taken, *moves), now * SECOND)
    said = " | ".join((found.state, found.because, found.next_retry, found.by_itself))
    assert [text for text in texts if text not in said] == [], said
    assert found.actions == actions


def test_an_audit_row_without_an_end_is_a_command_that_ended_early() -> None:
    row = play(replace(claim("k", lease=1, on_lapse="uncertain", now=1), kind="audit"))
    found = explain(row, 90 * SECOND)
    assert "an operator's command ended before" in found.because
    assert found.actions == ("keys resolve",)
