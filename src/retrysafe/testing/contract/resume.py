"""Claims that resume one run (rule 3 of the state machine, I35): such a claim takes over the run that it names, or is
refused. It never creates a record: a run that ended, expired and was reaped must not run again because of an old
list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retrysafe.core.judge import judge
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Replay
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS, SECOND_MICROS
from retrysafe.testing.builders import advance, claim, complete, fingerprint, lookup, reap, record_of, release
from retrysafe.testing.driver import Do

EXPIRED_SECONDS = 10 + HOUR_MICROS // SECOND_MICROS
"""The time at which a record that was settled at 5 and retained for 1 second has expired."""


def claim_resumable(do: Do, key: str = "k") -> Record:
    owner = do(claim(key, lease=10, retention=1, on_lapse="resume", run=b"the first run...", input=b"in", now=0))
    assert owner.granted
    return record_of(owner)


def test_it_takes_over_the_run_it_names(do: Do) -> None:
    first = claim_resumable(do)
    assert do(advance(first, "charged", b"half", lease=10, now=1)) is True
    op = claim("k", on_lapse="resume", resumes=first.run, now=20)
    reply = do(op)
    assert reply.granted
    record = record_of(reply)
    assert (record.run, record.attempt, record.token) == (first.run, 2, op.token)
    assert (record.point, record.progress, record.input) == ("charged", b"half", b"in")
    assert do(op).granted, "its own reply was lost"


def test_a_released_run_is_gone_on_with(do: Do) -> None:
    first = claim_resumable(do)
    assert do(release(first, now=5)) is True
    op = claim("k", resumes=first.run, now=6)
    assert isinstance(judge(op, do(op)), Execute)


def test_nothing_is_born(do: Do) -> None:
    op = claim("k", resumes=b"the first run...", now=0)
    reply = do(op)
    assert (reply.granted, reply.record, reply.now) == (False, None, 0)
    assert isinstance(judge(op, reply), Busy)
    assert do(lookup("k")).record is None
    assert do(claim("k", now=1)).granted, "the refused claim left nothing behind"


@pytest.mark.parametrize("how", ["completed", "released"])
def test_an_expired_run_is_not_born_again(do: Do, how: str) -> None:
    first = claim_resumable(do)
    assert do(complete(first, now=5) if how == "completed" else release(first, now=5)) is True
    before = do.record("k")
    op = claim("k", resumes=first.run, now=EXPIRED_SECONDS)
    reply = do(op)
    assert (reply.granted, reply.record) == (False, before)
    assert isinstance(judge(op, reply), Replay if how == "completed" else Busy)
    assert do.record("k") == before
    assert do(reap(now=EXPIRED_SECONDS)) == 1
    assert do(replace(op, now=EXPIRED_SECONDS * SECOND_MICROS)).granted is False
    assert do(lookup("k")).record is None


@pytest.mark.parametrize("how", ["running", "lapsed", "released", "completed"])
def test_another_run_is_left_alone(do: Do, how: str) -> None:
    """The record was reaped and created again between the list and the claim."""
    first = claim_resumable(do)
    assert do(complete(first, now=5)) is True
    second = record_of(do(claim("k", lease=10, retention=1, on_lapse="resume", now=EXPIRED_SECONDS)))
    assert second.run != first.run
    later = EXPIRED_SECONDS + 1
    if how == "released":
        assert do(release(second, now=later)) is True
    elif how == "completed":
        assert do(complete(second, now=later)) is True
    elif how == "lapsed":
        later = EXPIRED_SECONDS + 11
    before = do.record("k")
    op = claim("k", resumes=first.run, now=later)
    reply = do(op)
    assert (reply.granted, reply.record) == (False, before)
    assert isinstance(judge(op, reply), Mismatch), "neither its answer nor a hint to wait for it"
    assert do.record("k") == before


def test_a_run_that_somebody_has_is_waited_for(do: Do) -> None:
    first = claim_resumable(do)
    op = claim("k", resumes=first.run, now=5)
    reply = do(op)
    assert reply.granted is False
    assert judge(op, reply) == Busy(5 * SECOND_MICROS)
    assert do.record("k") == first


def test_it_is_still_compared_with_its_request(do: Do) -> None:
    first = claim_resumable(do)
    assert do(release(first, now=5)) is True
    other = claim("k", body=b"another", resumes=first.run, now=6)
    assert do(other).granted is False
    known = replace(other, alternatives=(fingerprint(b"{}"),), token=b"another token...")
    assert do(known).granted is True


def test_many_together(do: Do) -> None:
    """In one batch with new claims, a claim that resumes creates no record."""
    first = claim_resumable(do)
    assert do(release(first, now=5)) is True
    replies = do.many(
        [
            claim("new", now=6),
            claim("k", resumes=first.run, now=6),
            claim("absent", resumes=first.run, now=6),
            claim("newer", now=6),
        ]
    )
    assert [reply.granted for reply in replies] == [True, True, False, True]
    assert do(lookup("absent")).record is None
    assert record_of(replies[1]).attempt == 2
    assert record_of(replies[1]).expires == FOREVER_MICROS
    assert do.record("k").state is State.CLAIMED
