"""The table of outcomes (core/states.py, core/judge.py): all rows, for the same and for another fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe.core import moves
from retrysafe.core.judge import LAPSED_UNSEEN, judge
from retrysafe.core.ops import ClaimReply
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.testing import builders

NOW = 100 * SECOND_MICROS
BORN = moves.build_new_record(builders.claim("k", body=b"same", lease=30), 0)._replace(lease_until=NOW + 7)
DONE = BORN._replace(state=State.COMPLETED, answer=Answer(201, b"done"), expires=NOW + 1)

ROWS: dict[str, tuple[Record | None, type[Outcome], type[Outcome]]] = {
    "none": (None, Execute, Execute),
    "completed, expired": (DONE._replace(expires=NOW), Execute, Execute),
    "released, expired": (BORN._replace(state=State.RELEASED, expires=NOW), Execute, Execute),
    "claimed, live": (BORN, Busy, Mismatch),
    "claimed, lapsed, resume": (BORN._replace(lease_until=NOW, on_lapse="resume"), Execute, Mismatch),
    "claimed, lapsed, rerun": (BORN._replace(lease_until=NOW, on_lapse="rerun"), Execute, Mismatch),
    "claimed, lapsed, uncertain": (BORN._replace(lease_until=NOW, on_lapse="uncertain"), Uncertain, Mismatch),
    "released": (BORN._replace(state=State.RELEASED, expires=NOW + 1), Execute, Mismatch),
    "completed": (DONE, Replay, Mismatch),
    "uncertain": (BORN._replace(state=State.UNCERTAIN, note="who knows"), Uncertain, Mismatch),
}


def outcome(found: Record | None, body: bytes) -> Outcome:
    op = builders.claim("k", body=body)
    return judge(op, moves.claim(found, op, NOW)[1])


@pytest.mark.parametrize("row", ROWS)
def test_same_request(row: str) -> None:
    found, same, _ = ROWS[row]
    assert type(outcome(found, b"same")) is same


@pytest.mark.parametrize("row", ROWS)
def test_other_request(row: str) -> None:
    """I8, I9: decided before the state, so a foreign body gets neither the answer nor a hint to wait."""
    found, _, other = ROWS[row]
    assert type(outcome(found, b"other")) is other


def test_every_reply_has_exactly_one_outcome() -> None:
    for found, _, _ in ROWS.values():
        for granted in (True, False):
            for body in (b"same", b"other"):
                op = builders.claim("k", body=body)
                assert isinstance(judge(op, ClaimReply(granted, found, NOW)), Outcome)


def test_what_each_outcome_carries() -> None:
    taken: Any = outcome(ROWS["claimed, lapsed, rerun"][0], b"same")
    assert taken.fence.attempt == 2
    assert taken.record.fence == taken.fence
    assert outcome(BORN, b"same") == Busy(7)
    assert outcome(DONE, b"same") == Replay(DONE)
    assert outcome(DONE, b"other") == Mismatch(DONE.created)
    assert outcome(ROWS["uncertain"][0], b"same") == Uncertain(BORN.started, "who knows")
    assert outcome(ROWS["claimed, lapsed, uncertain"][0], b"same") == Uncertain(BORN.started, LAPSED_UNSEEN)


def test_a_key_held_by_an_unseen_transaction_is_busy() -> None:
    assert judge(builders.claim("k"), ClaimReply(False, None, NOW)) == Busy(SECOND_MICROS)


def test_busy_never_asks_to_come_back_in_the_past() -> None:
    released = BORN._replace(state=State.RELEASED, lease_until=NOW - 5)
    assert judge(builders.claim("k", body=b"same"), ClaimReply(False, released, NOW)) == Busy(0)
