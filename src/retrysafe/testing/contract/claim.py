"""Claims: new records, the outcome for every state of an existing record, takeover, expired records, replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retrysafe.core.judge import judge
from retrysafe.core.ops import Claim
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Replay, Uncertain
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS, SECOND_MICROS, duration_to_micros
from retrysafe.testing.builders import (
    DAY,
    advance,
    claim,
    complete,
    fingerprint,
    lookup,
    reap,
    record_of,
    release,
    suspect,
)
from retrysafe.testing.driver import Do

ON_LAPSE: tuple[OnLapse, ...] = ("resume", "uncertain", "rerun")


def test_birth_writes_down_everything_the_claim_said(do: Do) -> None:
    op = claim("k", lease=30, retention=DAY, on_lapse="rerun", input=b"\x00in\xff", now=7)
    reply = do(op)
    assert reply.granted
    assert reply.now == 7 * SECOND_MICROS
    assert reply.record == Record(
        id=op.id,
        namespace=op.namespace,
        kind="http",
        scope="t1",
        key="k",
        target="POST /things",
        fingerprint=op.fingerprint,
        state=State.CLAIMED,
        attempt=1,
        token=op.token,
        run=op.run,
        lease_until=37 * SECOND_MICROS,
        on_lapse="rerun",
        point="",
        progress=b"",
        input=b"\x00in\xff",
        answer=None,
        note="",
        created=7 * SECOND_MICROS,
        started=7 * SECOND_MICROS,
        completed=0,
        expires=FOREVER_MICROS,
        retention=duration_to_micros(DAY),
    )
    assert do.record("k") == reply.record


def test_a_key_nobody_claimed_has_no_record(do: Do) -> None:
    reply = do(lookup("k", now=3))
    assert reply.record is None
    assert reply.now == 3 * SECOND_MICROS


def test_looking_does_not_make_a_record(do: Do) -> None:
    do(lookup("k"))
    assert do(claim("k")).granted
    assert do.record("k").attempt == 1


# Every state, with the same and with another fingerprint (I1, I2, I8, I9, I12) --------------------


def arrange_nothing(do: Do) -> None:
    """No record."""


def arrange_live(do: Do) -> None:
    do(claim("k", lease=30, on_lapse="rerun", now=0))


def arrange_live_for_ever(do: Do) -> None:
    do(claim("k", lease=float("inf"), on_lapse="rerun", now=0))


def arrange_lapsed(on_lapse: OnLapse) -> Callable[[Do], None]:
    def arrange(do: Do) -> None:
        do(claim("k", lease=5, on_lapse=on_lapse, now=0))

    return arrange


def arrange_advanced_then_lapsed(do: Do) -> None:
    """The claim has on_lapse="uncertain", the recovery point "resume". The recovery point counts."""
    owner = do(claim("k", lease=30, on_lapse="uncertain", now=0))
    assert do(advance(owner, "charged", on_lapse="resume", lease=4, now=1))


def arrange_advanced_into_the_unknown(do: Do) -> None:
    """The claim has on_lapse="rerun", the recovery point "uncertain". The recovery point counts."""
    owner = do(claim("k", lease=30, on_lapse="rerun", now=0))
    assert do(advance(owner, "sending", on_lapse="uncertain", lease=4, now=1))


def arrange_released(do: Do) -> None:
    assert do(release(do(claim("k", now=0)), now=1))


def arrange_completed(do: Do) -> None:
    assert do(complete(do(claim("k", now=0)), b"first", now=1))


def arrange_suspected(do: Do) -> None:
    assert do(suspect(do(claim("k", now=0)), "lost the provider", now=1))


def arrange_completed_and_expired(do: Do) -> None:
    assert do(complete(do(claim("k", retention=1, now=-2 * 3600)), b"old", now=-3600))


def arrange_released_and_expired(do: Do) -> None:
    assert do(release(do(claim("k", retention=1, now=-2 * 3600)), now=-3600))


TABLE = [
    (arrange_nothing, Execute, Execute),
    (arrange_completed_and_expired, Execute, Execute),
    (arrange_released_and_expired, Execute, Execute),
    (arrange_live, Busy, Mismatch),
    (arrange_live_for_ever, Busy, Mismatch),
    (arrange_lapsed("resume"), Execute, Mismatch),
    (arrange_lapsed("rerun"), Execute, Mismatch),
    (arrange_lapsed("uncertain"), Uncertain, Mismatch),
    (arrange_advanced_then_lapsed, Execute, Mismatch),
    (arrange_advanced_into_the_unknown, Uncertain, Mismatch),
    (arrange_released, Execute, Mismatch),
    (arrange_completed, Replay, Mismatch),
    (arrange_suspected, Uncertain, Mismatch),
]
NAMES = [
    "nothing",
    "completed-expired",
    "released-expired",
    "live",
    "live-for-ever",
    "lapsed-resume",
    "lapsed-rerun",
    "lapsed-uncertain",
    "advanced-lapsed-resume",
    "advanced-lapsed-uncertain",
    "released",
    "completed",
    "uncertain",
]


@pytest.mark.parametrize(("arrange", "same", "other"), TABLE, ids=NAMES)
def test_table(do: Do, arrange: Callable[[Do], None], same: type, other: type) -> None:
    arrange(do)
    if other is not Execute:  # a refused claim writes nothing, so the second claim finds the same record
        assert_outcome(do, claim("k", body=b"something else", now=10), other)
    assert_outcome(do, claim("k", now=10), same)


def assert_outcome(do: Do, op: Claim, expected: type) -> None:
    before = do(lookup(op, now=10)).record
    assert isinstance(judge(op, do(op)), expected)
    if expected is not Execute:
        assert do(lookup(op, now=10)).record == before, "a refused claim writes nothing"


@pytest.mark.parametrize("arrange", [arrange_nothing, arrange_completed_and_expired, arrange_released_and_expired])
def test_a_key_that_is_free_is_free_for_another_request(do: Do, arrange: Callable[[Do], None]) -> None:
    arrange(do)
    assert_outcome(do, claim("k", body=b"something else", now=10), Execute)


BODY = fingerprint(b"body")
OTHERS = {
    "algorithm": BODY._replace(algorithm="raw2"),
    "digest": BODY._replace(digest=bytes(32)),
    "length": BODY._replace(length=5),
}


def test_every_part_of_the_fingerprint_counts(do: Do) -> None:
    """I8, I9: another request never runs, never waits and never gets the answer. Two algorithms with the same digest
    are still two requests."""
    assert do(complete(do(claim("k", fingerprint=BODY)), b"secret"))
    for part, other in OTHERS.items():
        op = claim("k", fingerprint=other, now=1)
        assert isinstance(judge(op, do(op)), Mismatch), part


def test_busy_says_how_long_at_most(do: Do) -> None:
    do(claim("k", lease=30, now=0))
    op = claim("k", now=12)
    assert judge(op, do(op)) == Busy(18 * SECOND_MICROS)


# Takeover -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_lapse", ["resume", "rerun"])
def test_takeover_is_the_next_attempt_of_the_same_life(do: Do, on_lapse: OnLapse) -> None:
    """I2, I3, I14: run, recovery point, progress and input stay. Attempt, token and lease change."""
    first = do(claim("k", lease=30, on_lapse=on_lapse, input=b"in", retention=DAY, now=0))
    assert do(advance(first, "charged", b"\x00half\xff", on_lapse=on_lapse, lease=30, now=5))
    before = do.record("k")
    op = claim("k", lease=60, on_lapse="uncertain", input=b"other", retention=2 * DAY, now=35)
    second = do(op)
    assert second.granted
    assert record_of(second) == before._replace(
        attempt=2,
        token=op.token,
        lease_until=95 * SECOND_MICROS,
        on_lapse="uncertain",
        started=35 * SECOND_MICROS,
        advances=0,
        ended=(record_of(first).token,),
    )
    assert (record_of(second).point, record_of(second).progress) == ("charged", b"\x00half\xff")
    assert record_of(second).run == record_of(first).run
    assert do.record("k") == second.record


def test_takeover_of_a_released_key_needs_no_lapse(do: Do) -> None:
    first = do(claim("k", lease=3600, on_lapse="uncertain", input=b"in", now=0))
    assert do(release(first, "503 from upstream", now=1))
    second = record_of(do(claim("k", lease=30, now=2)))
    assert (second.attempt, second.run, second.input) == (2, record_of(first).run, b"in")
    assert (second.created, second.started, second.completed) == (0, 2 * SECOND_MICROS, 0)
    assert (second.expires, second.note) == (FOREVER_MICROS, "")


def test_attempts_count_on(do: Do) -> None:
    """I3: the attempt grows by one at each grant."""
    for turn in range(1, 8):
        assert record_of(do(claim("k", lease=1, on_lapse="rerun", now=2 * turn))).attempt == turn


@pytest.mark.parametrize("on_lapse", ON_LAPSE)
def test_only_one_of_many_claims_wins_each_attempt(do: Do, on_lapse: OnLapse) -> None:
    """I1, one claim after the other. tests/races runs them at the same time."""
    replies = [do(claim("k", lease=5, on_lapse=on_lapse, now=0)) for _ in range(5)]
    assert [reply.granted for reply in replies] == [True, False, False, False, False]
    later = [do(claim("k", lease=5, on_lapse=on_lapse, now=6)) for _ in range(5)]
    expected = [on_lapse != "uncertain", False, False, False, False]
    assert [reply.granted for reply in later] == expected


# Rebirth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["completed", "released"])
def test_rebirth_starts_a_new_life(do: Do, ending: str) -> None:
    """I12: nothing of the expired record is left, and another request may use the key."""
    first = do(claim("k", retention=1, input=b"old", on_lapse="rerun", now=0))
    settle = complete(first, b"old", now=1) if ending == "completed" else release(first, "old", now=1)
    assert do(settle)
    op = claim("k", body=b"new request", on_lapse="resume", lease=9, retention=77, input=b"new", now=1 + 3600)
    reply = do(op)
    assert reply.granted
    record = record_of(reply)
    assert (record.attempt, record.token, record.run) == (1, op.token, op.run)
    assert record.run != record_of(first).run
    assert (record.fingerprint, record.input) == (op.fingerprint, b"new")
    assert (record.answer, record.point, record.progress, record.note) == (None, "", b"", "")
    assert record.created == record.started == SECOND_MICROS + HOUR_MICROS
    assert (record.completed, record.expires, record.retention) == (0, FOREVER_MICROS, 77 * SECOND_MICROS)
    assert (record.on_lapse, record.lease_until) == ("resume", 3610 * SECOND_MICROS)
    assert do.record("k") == record


def test_rebirth_forgets_the_recovery_point(do: Do) -> None:
    first = do(claim("k", retention=1, on_lapse="resume", now=0))
    assert do(advance(first, "charged", b"half", now=1))
    assert do(complete(first, b"done", now=2))
    second = record_of(do(claim("k", now=2 + 3600)))
    assert (second.attempt, second.point, second.progress) == (1, "", b"")


# Replay -------------------------------------------------------------------------------------------


def test_replay_writes_nothing_and_gives_the_first_answer(do: Do) -> None:
    """I5, I6: replays do not change the record, not by one byte."""
    owner = do(claim("k", input=b"in", now=0))
    answer = Answer(402, b'{"declined": true}', (("content-type", "application/json"), ("x-a", "1")))
    assert do(complete(owner, answer, now=1))
    before = do.record("k", now=1)
    for now in (1, 2, 3600, DAY - 1):
        op = claim("k", lease=99, retention=99 * DAY, input=b"changed", target="PUT /other", now=now)
        outcome = judge(op, do(op))
        assert isinstance(outcome, Replay)
        assert outcome.record.answer == answer
        assert outcome.record == before
    assert do.record("k", now=DAY - 1) == before


# An unclear claim, sent again (I11) ---------------------------------------------------------------


def test_own_claim_is_recognised(do: Do) -> None:
    op = claim("k", now=0)
    first = do(op)
    assert do(op) == first
    assert do.record("k").attempt == 1


def test_own_claim_is_recognised_after_its_lease_lapsed(do: Do) -> None:
    """The reply took longer than the lease. No other claim took over, so the claim still owns the key."""
    token = b"t" * 16
    first = do(claim("k", lease=5, token=token, now=0))
    again = do(claim("k", lease=5, token=token, now=60))
    assert again.granted
    assert again.record == first.record


def test_own_takeover_is_recognised(do: Do) -> None:
    do(claim("k", lease=5, on_lapse="rerun", now=0))
    op = claim("k", lease=5, on_lapse="rerun", now=6)
    assert do(op) == do(op)
    assert do.record("k").attempt == 2


def test_own_claim_that_lost_the_key_meanwhile_is_refused(do: Do) -> None:
    """I1: only the current owner is recognised, not an earlier one."""
    first = claim("k", lease=5, on_lapse="rerun", now=0)
    do(first)
    do(claim("k", lease=60, on_lapse="rerun", now=6))
    again = claim("k", lease=5, on_lapse="rerun", token=first.token, run=first.run, now=7)
    reply = do(again)
    assert not reply.granted
    assert isinstance(judge(again, reply), Busy)


def test_own_token_does_not_open_a_settled_record(do: Do) -> None:
    op = claim("k", now=0)
    assert do(complete(do(op), b"done", now=1))
    outcome = judge(op, do(op))
    assert isinstance(outcome, Replay)


def test_own_token_does_not_open_an_uncertain_record(do: Do) -> None:
    op = claim("k", now=0)
    assert do(suspect(do(op), now=1))
    assert isinstance(judge(op, do(op)), Uncertain)


def test_the_sweeper_and_the_reaper_do_not_change_who_wins(do: Do) -> None:
    """I12: an expired key is granted in the same way, reaped or not."""
    for key in ("swept", "unswept"):
        assert do(complete(do(claim(key, retention=1, now=0)), b"x", now=0))
    later = 3600
    assert do(reap(1, now=later)) == 1
    replies = [do(claim(key, now=later)) for key in ("swept", "unswept")]
    assert [(r.granted, record_of(r).attempt) for r in replies] == [(True, 1), (True, 1)]


def test_the_store_has_a_clock(do: Do) -> None:
    """Without `now` the store uses its own clock, in microseconds since 1970."""
    reply = do(claim("k", lease=60, now=None))
    assert reply.granted
    assert 1_600_000_000 * SECOND_MICROS < reply.now < 4_000_000_000 * SECOND_MICROS
    record = record_of(reply)
    assert record.created == record.started <= reply.now
    assert record.lease_until == record.created + 60 * SECOND_MICROS
    second = do(claim("k", now=None))
    assert not second.granted
    assert second.now >= reply.now
    assert do(complete(reply, b"done", now=None))
    settled = do.record("k", now=None)
    assert settled.completed >= record.created
    assert settled.expires == record.created + duration_to_micros(DAY)
