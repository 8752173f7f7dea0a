"""start="worker": committed with its input, answered at once, run by the worker; and resuming by id."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer, Policy
from retrysafe.core.ops import Op
from retrysafe.core.states import State
from retrysafe.engine.drive import run
from retrysafe.engine.orphaned_claims import ORPHANED_NOTE, release_orphaned
from retrysafe.errors import FingerprintMismatch, NotFinished, OutcomeUnknown, UsageError
from retrysafe.operations import Accepted
from retrysafe.worker.completer import Completer, CompleterCounts
from tests.operations.world import OrderIn, Ordering, World

WORKER = Policy(failures="release", start="worker")


def now_due(attempt: int) -> float:
    return 0.0


def test_it_is_accepted_and_the_worker_runs_it(w: World) -> None:
    ordering = Ordering(w, policy=WORKER)
    first = ordering()
    assert isinstance(first, Accepted)
    assert (first.key, first.target, len(first.id)) == ("k", "create_order@1", 64)
    assert ordering().id == first.id
    assert (w.state(), w.record().attempt, w.items()) == (State.CLAIMED, 1, [])
    assert Completer(w.safe).run_once() == CompleterCounts(1, 0, 0)
    assert ordering() == Answer(201, {"order": 1, "charge": "ch_0"})
    assert (w.items(), len(w.sent)) == (["a"], 1)


def test_submit_without_the_policy(w: World) -> None:
    ordering = Ordering(w)
    assert isinstance(w.run(ordering.op.submit(OrderIn("a", 5), key="k")), Accepted)
    assert ordering().status == 201
    again = w.run(ordering.op.submit(OrderIn("a", 5), key="k"))
    assert again.replayed
    with pytest.raises(FingerprintMismatch):
        w.run(ordering.op.submit(OrderIn("b", 5), key="k"))


def test_waiting_for_the_worker_does_not_age_its_keys(w: World) -> None:
    """Accepted two days ago, and no worker was running: nothing was sent yet, so the key is new."""
    ordering = Ordering(w, policy=WORKER)
    ordering()
    w.age(2 * 86_400)
    assert Completer(w.safe).run_once() == CompleterCounts(1, 0, 0)
    assert len(w.sent) == 1


def test_asking_again_is_not_an_attempt(w: World) -> None:
    ordering = Ordering(w, policy=WORKER, max_attempts=2)
    for _ in range(5):
        ordering()
    assert w.record().attempt == 1


def orphan(w: World, ordering: Ordering, *, resumes: bool) -> None:
    """A claim of this run is granted when its caller has left, and is let go of in the background."""
    _, claim = ordering.op.prepare((OrderIn("a", 5),), {}, "k")
    if resumes:
        _, claim = ordering.op._build_resume_claim(w.record())

    def execute(effect: Any) -> Any:
        return w.safe.execute(effect) if isinstance(effect, Op) else None

    run(release_orphaned(claim), execute)
    assert (w.state(), w.record().note) == (State.RELEASED, ORPHANED_NOTE)


def test_what_was_accepted_is_not_lost_with_a_claim_of_the_worker(w: World) -> None:
    """I13: the client has its 202 and asks no more. The next round of the worker runs it."""
    ordering = Ordering(w, policy=WORKER)
    assert isinstance(ordering(), Accepted)
    orphan(w, ordering, resumes=True)
    assert Completer(w.safe, grace=0.0, backoff=now_due).run_once() == CompleterCounts(1, 0, 0)
    assert (ordering().status, w.items(), len(w.sent)) == (201, ["a"], 1)


def test_what_was_begun_is_not_lost_with_a_claim_of_the_worker(w: World) -> None:
    """I13: the first attempt died before its first commit, and may have sent its first step."""
    ordering = Ordering(w)
    orphan(w, ordering, resumes=False)
    w.sql(f"UPDATE {w.keys} SET state = 'claimed', lease_until = started + 1, on_lapse = 'resume'")
    orphan(w, ordering, resumes=True)
    assert Completer(w.safe, grace=0.0, backoff=now_due).run_once() == CompleterCounts(1, 0, 0)
    assert (w.items(), len(w.sent)) == (["a"], 1)


def test_a_submission_whose_claim_was_let_go_of_is_accepted_anew(w: World) -> None:
    """I13: 202 is said of what a worker will find."""
    ordering = Ordering(w, policy=WORKER)
    orphan(w, ordering, resumes=False)
    assert isinstance(ordering(), Accepted)
    assert Completer(w.safe, grace=0.0, backoff=now_due).run_once() == CompleterCounts(1, 0, 0)
    assert (ordering().status, w.items(), len(w.sent)) == (201, ["a"], 1)


def test_who_asks_for_what_is_uncertain_is_told(w: World) -> None:
    ordering = Ordering(w, policy=WORKER, max_attempts=1)
    ordering.fail["charge"] = [ConnectionError("down")] * 3
    ordering()
    assert Completer(w.safe).run_once() == CompleterCounts(0, 0, 0, dead=1)
    with pytest.raises(OutcomeUnknown):
        ordering()


def test_going_on_by_id(w: World) -> None:
    ordering = Ordering(w)
    ordering.fail["finish"] = [ValueError("no")] * 3
    with pytest.raises(NotFinished):
        ordering()
    ended = w.run(ordering.op.resume_id(w.record().id.hex()))
    assert ended.answer.status == 201
    assert w.run(ordering.op.resume_id(w.record().id)).replayed
    with pytest.raises(UsageError, match="64 hex digits"):
        w.run(ordering.op.resume_id("abc"))
    with pytest.raises(UsageError, match="there is no record"):
        w.run(ordering.op.resume_id("00" * 32))


def test_the_completer_waits_for_the_client_then_goes_on(w: World) -> None:
    ordering = Ordering(w)
    _, claim = ordering.op.prepare((OrderIn("a", 5),), {}, "k")
    assert w.safe.execute(claim).granted
    assert Completer(w.safe, grace=0).run_once() == CompleterCounts(0, 0, 0)
    w.sql(f"UPDATE {w.keys} SET lease_until = started + 1")
    assert Completer(w.safe, grace=3600).run_once() == CompleterCounts(0, 0, 0)
    assert Completer(w.safe, grace=0).run_once() == CompleterCounts(1, 0, 0)
    assert w.items() == ["a"]


def test_the_completer_backs_off_and_ends(w: World) -> None:
    """I21: a poison operation is tried so often, and then given to a person."""
    ordering = Ordering(w, max_attempts=4)
    ordering.fail["charge"] = [ConnectionError("down")] * 99
    with pytest.raises(NotFinished):
        ordering()
    assert Completer(w.safe).run_once() == CompleterCounts(0, 0, 0), "not before two seconds have passed"
    rounds = []
    for _ in range(5):
        w.age(600)
        rounds.append(Completer(w.safe, backoff=now_due).run_once())
    tried, dead, nothing = CompleterCounts(0, 1, 0), CompleterCounts(0, 0, 0, dead=1), CompleterCounts(0, 0, 0)
    assert rounds == [tried, tried, dead, nothing, nothing]
    assert (w.state(), w.record().attempt, len(w.sent)) == (State.UNCERTAIN, 4, 12)


def test_an_operation_that_kills_every_process_is_given_to_a_person(w: World) -> None:
    ordering = Ordering(w, max_attempts=3)
    for _ in range(3):
        _, claim = ordering.op.prepare((OrderIn("a", 5),), {}, "k")
        assert w.safe.execute(claim).granted
        w.lapse()
    assert Completer(w.safe, grace=0).run_once() == CompleterCounts(0, 0, 0, 1)
    assert w.state() is State.UNCERTAIN
    assert w.record().note == "dead letter: 3 attempts of create_order died at 'the start'"
    assert Completer(w.safe, grace=0).run_once() == CompleterCounts(0, 0, 0, 0)
