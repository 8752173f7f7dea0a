"""The guard, driven by hand: which effects it asks for, in which order, for every ending."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retrysafe.core import moves
from retrysafe.core.ops import Claim, ClaimReply, Complete, Release, Suspect, Withdraw
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.effects import FlowPause, Invoke
from retrysafe.engine.events import Events
from retrysafe.engine.guard import POLL_SECONDS, Ended, Unstorable, settle_withdrawn
from retrysafe.errors import (
    AnswerGone,
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    OutcomeUnrecorded,
    ResultNotStorable,
    StoreUnavailable,
    StoreUnclear,
)
from retrysafe.policy import Policy
from tests.unit.engine.hands import NOW, Hands, Work, granted, guarded, started, task


def held(body: bytes = b"same", **changes: Any) -> Record:
    """A record that somebody else holds."""
    return moves.build_new_record(task(body=body).build_claim(), NOW)._replace(**changes)


DONE = {"state": State.COMPLETED, "answer": Answer(201, b"first"), "expires": NOW + 10}


# It is ours --------------------------------------------------------------------------------------


def test_claim_call_complete_in_that_order() -> None:
    events, work = Events(), Work()
    flow = started(guarded(work=work, events=events))
    call = flow.effect
    assert call.function() == "called"
    lease = call.lease
    assert work.seen[0].fence == lease.fence
    flow.reply("result")
    assert flow.effect == Complete(lease.id, lease.fence, Answer(200, b"result"))
    assert not lease.done, "it is kept until the answer is stored"
    flow.reply(True)
    assert lease.done
    assert isinstance(flow.result, Ended)
    assert (flow.result.result, flow.result.replayed, flow.result.answer.body) == ("result", False, b"result")
    assert flow.kinds() == ["Claim", "Invoke", "Complete"]
    assert events.counts() == {"new": 1, "completed": 1}


def test_what_is_claimed() -> None:
    given = task(Policy(lease=10, retention=100, abandoned="rerun"))
    claim = guarded(given).effect
    assert isinstance(claim, Claim)
    assert (claim.id, claim.kind, claim.scope, claim.key) == (given.key.id("default"), "http", "tenant", "k")
    assert (claim.lease, claim.retention, claim.on_lapse) == (10_000_000, 100_000_000, "rerun")
    assert (len(claim.token), len(claim.run), claim.now) == (16, 16, None)
    assert guarded(given).effect.token != claim.token


def test_nothing_runs_when_the_claim_fails() -> None:
    """I27: fail closed."""
    for error in (StoreUnavailable("down"), StoreUnclear("silent")):
        flow = guarded().fail(error)
        assert flow.error is error
        assert flow.kinds() == ["Claim"]


def test_the_result_is_not_given_before_it_is_stored() -> None:
    error = StoreUnavailable("down")
    flow = started(guarded()).reply("result").fail(error)
    assert isinstance(flow.error, OutcomeUnrecorded)
    assert flow.error.__cause__ is error


def test_a_late_owner_is_told() -> None:
    events = Events()
    flow = started(guarded(events=events)).reply("result").reply(False)
    assert isinstance(flow.error, LeaseLost)
    assert events.counts() == {"new": 1, "lease_lost": 1}


def test_a_result_that_cannot_be_stored_leaves_a_tombstone() -> None:
    problem = ResultNotStorable("f", "a socket")
    flow = started(guarded(work=Work(Unstorable(problem)))).reply("result")
    assert flow.effect.answer == Answer(500, gone="unstorable")
    assert flow.reply(True).error is problem


# It raised ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "ending"),
    [
        ("store", Complete),
        ("release", Release),
        ("success_only", Release),
        (lambda status, error: isinstance(error, KeyError), Release),
        (lambda status, error: isinstance(error, ValueError), Complete),
        (lambda status, error: status == 500, Complete),
    ],
)
def test_an_exception_ends_as_the_policy_says_and_goes_on(failures: Any, ending: type[Any]) -> None:
    error = ValueError("no")
    flow = started(guarded(task(failures=failures))).fail(error)
    assert type(flow.effect) is ending
    if ending is Complete:
        assert flow.effect.answer == Answer(500, b"ValueError")
    else:
        assert flow.effect.note == "it failed with ValueError"
    assert flow.reply(True).error is error
    assert flow.kinds() == ["Claim", "Invoke", ending.__name__]


def test_an_exception_with_a_status_of_its_own_is_judged_by_it() -> None:
    class Declined(Exception):
        status_code = 402

    seen: list[int] = []
    flow = started(guarded(task(failures=lambda status, error: bool(seen.append(status)))))
    flow.fail(Declined())
    assert seen == [402]


@pytest.mark.parametrize("trouble", [StoreUnavailable("the store is down"), StoreUnclear("the store is silent")])
@pytest.mark.parametrize("failures", ["store", "release"])
def test_a_store_that_fails_then_does_not_hide_the_error(failures: Any, trouble: Exception) -> None:
    events, error = Events(), ValueError("no")
    flow = started(guarded(task(failures=failures), events=events)).fail(error).fail(trouble)
    assert flow.error is error
    assert str(trouble) in error.__notes__[0]
    assert events.counts()["store_failed"] == 1


def test_a_policy_that_fails_does_not_hide_the_error() -> None:
    def broken(status: int, error: BaseException | None) -> bool:
        raise RuntimeError("the callable is broken")

    error = ValueError("no")
    flow = started(guarded(task(failures=broken))).fail(error)
    assert isinstance(flow.effect, Complete), "it ran, and once is what was promised"
    assert flow.reply(True).error is error
    assert "the callable is broken" in error.__notes__[0]


@pytest.mark.parametrize("abandoned", ["uncertain", "rerun"])
def test_a_policy_that_fails_does_not_let_it_run_again(abandoned: Any) -> None:
    """It ran, and the one who should say what its failure means could not: so it is not given back."""

    def broken(status: int, error: BaseException | None) -> bool:
        raise RuntimeError("the callable is broken")

    flow = started(guarded(task(failures=broken, abandoned=abandoned))).fail(ValueError("no"))
    assert "Release" not in flow.kinds()


def test_a_late_owner_s_failure_changes_nothing_and_is_noted() -> None:
    error = ValueError("no")
    flow = started(guarded()).fail(error).reply(False)
    assert flow.error is error
    assert "no longer owns it" in error.__notes__[0]


# It was stopped ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)], ids=repr)
@pytest.mark.parametrize("failures", ["store", "release"])
def test_stopped_before_it_began_is_released(stop: BaseException, failures: Any) -> None:
    flow = guarded(task(failures=failures))
    flow.reply(granted(flow.effect))
    flow.fail(stop)
    assert isinstance(flow.effect, Withdraw)
    assert "before it began" in flow.effect.note
    assert flow.reply(True).error is stop


@pytest.mark.parametrize("stop", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)], ids=repr)
@pytest.mark.parametrize("failures", ["store", "release"])
@pytest.mark.parametrize(("abandoned", "ending"), [("uncertain", Suspect), ("rerun", Release)])
def test_stopped_half_way_nobody_knows(stop: BaseException, failures: Any, abandoned: Any, ending: type[Any]) -> None:
    """nodii and ohshya release here, and the effect happens twice."""
    flow = started(guarded(task(failures=failures, abandoned=abandoned))).fail(stop)
    assert type(flow.effect) is ending
    assert type(stop).__name__ in flow.effect.note
    if ending is Suspect:
        assert not flow.effect.lapsed_only
    assert flow.reply(True).error is stop


def test_a_flow_whose_loop_is_gone_asks_for_nothing() -> None:
    flow = started(guarded())
    flow.close()
    assert flow.kinds() == ["Claim", "Invoke"]


# It was not entered ------------------------------------------------------------------------------


@pytest.mark.parametrize(("busy", "asked"), [("wait", ["Withdraw", "NotifyWaiters"]), ("conflict", ["Withdraw"])])
def test_withdrawing_wakes_who_waits(busy: Any, asked: list[str]) -> None:
    given, events = task(busy=busy), Events()
    lease = started(guarded(given)).effect.lease
    flow = Hands(settle_withdrawn(given, lease, "a redirect", events))
    assert flow.effect == Withdraw(lease.id, lease.fence, "a redirect")
    flow.reply(True)
    if not flow.over:
        flow.reply(None)
    assert (flow.kinds(), flow.over) == (asked, True)
    assert events.counts() == {"withdrawn": 1}


def test_a_late_owner_withdraws_nothing() -> None:
    events = Events()
    flow = Hands(settle_withdrawn(task(busy="wait"), started(guarded()).effect.lease, "a redirect", events)).reply(
        False
    )
    assert (flow.over, flow.kinds(), events.counts()) == (True, ["Withdraw"], {})


# It is somebody else's ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "error", "event"),
    [
        (held(), InProgress, "busy"),
        (held(b"other"), FingerprintMismatch, "mismatched"),
        (held(b"other", **DONE), FingerprintMismatch, "mismatched"),
        (held(state=State.UNCERTAIN, note="died"), OutcomeUnknown, "uncertain"),
        (held(lease_until=NOW), OutcomeUnknown, "uncertain"),
        (held(**{**DONE, "answer": Answer(200, gone="too_large")}), AnswerGone, "replayed"),
        (held(**{**DONE, "answer": Answer(200, gone="forgotten")}), AnswerGone, "replayed"),
    ],
)
def test_refusals(found: Record, error: type[Exception], event: str) -> None:
    events = Events()
    flow = guarded(events=events)
    flow.reply(granted(flow.effect, found))
    assert type(flow.error) is error
    assert flow.kinds() == ["Claim"]
    assert events.counts() == {event: 1}


def test_a_replay_asks_for_nothing_more() -> None:
    flow = guarded()
    flow.reply(granted(flow.effect, held(**DONE)))
    assert (flow.result.answer, flow.result.replayed) == (Answer(201, b"first"), True)
    assert flow.kinds() == ["Claim"]


def test_busy_says_when_to_come_back() -> None:
    flow = guarded()
    flow.reply(granted(flow.effect, held(lease_until=NOW + 7_000_000)))
    assert isinstance(flow.error, InProgress)
    assert flow.error.retry_after == 7


# Waiting -----------------------------------------------------------------------------------------


def waiting(wait: float = 30) -> Hands:
    """A caller that met a living owner."""
    flow = guarded(task(busy="wait", wait=wait))
    flow.reply(granted(flow.effect, held()))
    assert isinstance(flow.effect, FlowPause)
    return flow


def test_a_waiter_pauses_and_sends_the_same_claim_again() -> None:
    flow = waiting()
    claim, pause = flow.asked
    assert isinstance(pause, FlowPause)
    assert POLL_SECONDS[0] <= pause.seconds <= POLL_SECONDS[1]
    assert flow.reply(None).effect is claim


def test_a_waiter_gets_the_answer() -> None:
    flow = waiting().reply(None)
    flow.reply(granted(flow.effect, held(**DONE)))
    assert flow.result.answer.body == b"first"


def test_a_waiter_runs_it_when_the_owner_gave_up() -> None:
    flow = waiting().reply(None)
    flow.reply(granted(flow.effect, held(state=State.RELEASED)))
    assert isinstance(flow.effect, Invoke)
    assert flow.effect.lease.fence.attempt == 2


def test_a_waiter_compares_the_request_anew_each_time() -> None:
    """IDK hands a waiter the answer to another payload that took the key meanwhile."""
    flow = waiting().reply(None)
    flow.reply(granted(flow.effect, held(b"other", **DONE)))
    assert isinstance(flow.error, FingerprintMismatch)


def test_a_waiter_stops_when_the_outcome_is_unknown() -> None:
    flow = waiting().reply(None)
    flow.reply(granted(flow.effect, held(state=State.UNCERTAIN)))
    assert isinstance(flow.error, OutcomeUnknown)


def test_the_wait_has_a_budget() -> None:
    flow = waiting(wait=1.0)
    while not flow.over:
        flow.reply(None if isinstance(flow.effect, FlowPause) else granted(flow.effect, held()))
    assert isinstance(flow.error, InProgress)
    pauses = [effect.seconds for effect in flow.asked if isinstance(effect, FlowPause)]
    assert sum(pauses) == pytest.approx(1.0)
    assert isinstance(flow.asked[-1], Claim)


def test_no_budget_no_wait() -> None:
    flow = guarded(task(busy="wait", wait=0))
    flow.reply(granted(flow.effect, held()))
    assert isinstance(flow.error, InProgress)


def test_a_key_held_by_an_unseen_transaction_is_waited_for_too() -> None:
    flow = guarded(task(busy="wait"))
    flow.reply(ClaimReply(False, None, NOW))
    assert isinstance(flow.effect, FlowPause)


def test_a_waiter_that_is_cancelled_leaves_nothing_behind() -> None:
    stop = asyncio.CancelledError()
    flow = waiting().fail(stop)
    assert flow.error is stop
    assert flow.kinds() == ["Claim", "FlowPause"]
