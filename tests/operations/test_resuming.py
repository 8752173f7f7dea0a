"""Resuming a run: that run and no other, and a submitted run that was never started counts as new (I35)."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer, Policy
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import InProgress, NotFinished, RunOver, UsageError
from retrysafe.operations import flow
from retrysafe.worker.completer import Completer, CompleterCounts
from tests.operations.world import Charge, Ordering, World

WORKER = Policy(failures="release", start="worker")
SHORT = Policy(failures="release", retention=3600)


class Killed(BaseException):
    """Stands for SIGKILL: the code under test does not catch it."""


def expire(w: World) -> None:
    """Time passes: what was settled is expired, but not reaped yet."""
    w.sql(f"UPDATE {w.keys} SET expires = 1 WHERE state = 'completed'")


def finished(w: World) -> tuple[Ordering, Any]:
    """An order that was begun, listed as unfinished, and then finished by its client."""
    ordering = Ordering(w, policy=SHORT)
    ordering.fail["charge"] = [ConnectionError("down")] * 3
    with pytest.raises(NotFinished):
        ordering()
    seen = w.record()
    assert ordering().status == 201
    return ordering, seen


def test_an_expired_run_is_not_charged_again_by_a_stale_list(w: World) -> None:
    ordering, seen = finished(w)
    expire(w)
    before, charged = w.record(), dict(ordering.applied)
    ended = w.run(ordering.op.resume(seen))
    assert (ended.replayed, ended.answer.status) == (True, 201), "it was finished, and its answer is still there"
    assert (w.record(), ordering.applied, w.items()) == (before, charged, ["a"])


def test_a_run_that_was_cleared_away_is_not_born_again(w: World) -> None:
    ordering, seen = finished(w)
    w.sql(f"DELETE FROM {w.keys}")
    charged = dict(ordering.applied)
    with pytest.raises(InProgress):
        w.run(ordering.op.resume(seen))
    with pytest.raises(UsageError, match="there is no record"):
        w.run(ordering.op.resume_id(seen.id))
    assert (w.records(), ordering.applied, w.items()) == ([], charged, ["a"])


def test_another_life_of_the_key_is_not_gone_on_with(w: World) -> None:
    ordering, seen = finished(w)
    expire(w)
    ordering.fail["charge"] = [ConnectionError("down")] * 3
    with pytest.raises(NotFinished):
        ordering()
    before = w.record()
    assert before.run != seen.run
    with pytest.raises(RunOver, match=seen.run.hex()[:8]):
        w.run(ordering.op.resume(seen))
    task, claim = ordering.op._build_resume_claim(seen)
    with pytest.raises(RunOver, match=seen.run.hex()[:8]):
        w.run(ordering.op._drive(flow.undo_run(ordering.op, task, claim, w.safe.events, "cancelled")))
    assert w.record() == before


def test_by_id_the_run_that_is_seen_is_the_run_that_is_meant(w: World) -> None:
    """A person names an id; what they saw may be over by the time the claim arrives."""
    ordering, _ = finished(w)
    expire(w)
    charged = dict(ordering.applied)
    ended = w.run(ordering.op.resume_id(w.record().id))
    assert ended.replayed
    assert (ordering.applied, w.items()) == (charged, ["a"])


def test_giving_up_a_stale_record_touches_nothing(w: World) -> None:
    ordering, seen = finished(w)
    expire(w)
    before = w.record()
    w.run(ordering.op.give_up(seen))
    assert w.record() == before


# What was submitted long ago --------------------------------------------------------------------------------------


def submitted_long_ago(w: World) -> Ordering:
    ordering = Ordering(w, policy=WORKER)
    ordering()
    w.age(2 * 86_400)
    return ordering


def test_resumed_by_id_it_is_as_new_as_when_the_worker_runs_it(w: World) -> None:
    ordering = submitted_long_ago(w)
    ended = w.run(ordering.op.resume_id(w.record().id))
    assert ended.answer == Answer(201, {"order": 1, "charge": "ch_0"})
    assert len(w.sent) == 1


def test_a_second_and_third_attempt_count_from_the_first_that_ran(w: World) -> None:
    """The first two ended before anything was sent: the key is younger than the order."""
    ordering = submitted_long_ago(w)
    ordering.fail["insert_order"] = [ValueError("no")] * 6
    for _ in range(2):
        with pytest.raises(NotFinished):
            w.run(ordering.op.resume(w.record()))
    assert w.run(ordering.op.resume(w.record())).answer.status == 201
    assert (len(w.sent), w.state()) == (1, State.COMPLETED)


def test_a_first_attempt_that_died_is_not_older_than_itself(w: World) -> None:
    """It may have sent the charge, but not before its first claim."""
    op = w.safe.operation("charging", policy=WORKER)
    written: list[Record] = []

    @w.foreign(op)
    def charge(*, key: str) -> Charge:
        w.sent.append(key)
        if not written:
            written.append(w.record())
            raise Killed
        return Charge("ch")

    @w.body(op)
    def body() -> Answer:
        paid = yield charge
        return Answer(201, {"charge": paid.id})

    w.run(op.submit(key="k"))
    w.age(2 * 86_400)
    with pytest.raises(Killed):
        w.run(op.resume(w.record()))
    # As if it had been killed at the charge: there is what was written when the charge was sent, and no word since.
    died = written[0]
    w.sql(
        f"UPDATE {w.keys} SET state = 'claimed', lease_until = 1, on_lapse = 'resume', note = '', completed = 0, "
        "point = ?, progress = ?",
        *(died.point, died.progress),
    )
    w.age(600)
    assert Completer(w.safe, grace=0).run_once() == CompleterCounts(1, 0, 0)
    assert (len(w.sent), len({*w.sent})) == (2, 1)
