"""Forget: erase the stored bytes and keep the record, so that nothing runs again."""

from __future__ import annotations

from retrysafe.core.judge import judge
from retrysafe.core.outcomes import Mismatch, Replay
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.testing.builders import (
    DAY,
    advance,
    answer,
    claim,
    complete,
    forget,
    reap,
    record_of,
    release,
    suspect,
)
from retrysafe.testing.driver import Do


def test_forget_erases_the_bytes_and_keeps_the_fact(do: Do) -> None:
    owner = do(claim("k", input=b"card number", now=0))
    assert do(advance(owner, "charged", b"receipt", now=1)) is True
    assert do(complete(owner, answer(b"secret", status=201), now=2)) is True
    before = do.record("k")
    assert do(forget(owner, now=3)) is True
    assert do.record("k") == before._replace(answer=Answer(201, b"", (), gone="forgotten"), input=b"", progress=b"")


def test_a_forgotten_key_does_not_run_again(do: Do) -> None:
    owner = do(claim("k", now=0))
    assert do(complete(owner, b"secret", now=1)) is True
    assert do(forget(owner, now=2)) is True
    op = claim("k", now=3)
    outcome = judge(op, do(op))
    assert isinstance(outcome, Replay)
    assert outcome.record.answer is not None
    assert outcome.record.answer.gone == "forgotten"
    other = claim("k", body=b"another", now=3)
    assert isinstance(judge(other, do(other)), Mismatch)


def test_forget_may_be_sent_again(do: Do) -> None:
    """I11: a second copy is recognised."""
    owner = do(claim("k", now=0))
    assert do(complete(owner, b"secret", now=1)) is True
    assert do(forget(owner, now=2)) is True
    before = do.record("k")
    assert do(forget(owner, now=3)) is True
    assert do.record("k") == before


def test_forget_a_tombstone(do: Do) -> None:
    owner = do(claim("k", now=0))
    assert do(complete(owner, answer(b"", gone="too_large"), now=1)) is True
    assert do(forget(owner, now=2)) is True
    found = do.record("k").answer
    assert found is not None
    assert found.gone == "forgotten"


def test_forget_a_released_record(do: Do) -> None:
    """There is no answer to erase. The input is erased, and the next attempt may run."""
    owner = do(claim("k", input=b"card number", now=0))
    assert do(release(owner, now=1)) is True
    before = do.record("k")
    assert do(forget(owner, now=2)) is True
    assert do.record("k") == before._replace(input=b"")
    assert do.record("k").answer is None
    assert record_of(do(claim("k", now=3))).attempt == 2


def test_unfinished_work_is_not_forgotten(do: Do) -> None:
    """I13: the progress that a resume needs is kept."""
    owner = do(claim("k", input=b"in", now=0))
    assert do(advance(owner, "charged", b"half", now=0)) is True
    assert do(release(owner, now=1)) is True
    before = do.record("k")
    assert do(forget(owner, now=2)) is False
    assert do.record("k") == before


def test_open_records_are_not_forgotten(do: Do) -> None:
    """I13: claimed and uncertain records are unfinished work."""
    owner = do(claim("k", input=b"in", now=0))
    assert do(forget(owner, now=1)) is False
    assert do(suspect(owner, now=2)) is True
    assert do(forget(owner, now=3)) is False
    record = do.record("k")
    assert (record.input, record.state) == (b"in", State.UNCERTAIN)


def test_only_the_fence_on_the_record_may_forget(do: Do) -> None:
    """I4: a request to forget an expired record does not change the new record of the key."""
    old = do(claim("k", retention=1, now=0))
    assert do(complete(old, b"old", now=0)) is True
    new = do(claim("k", input=b"new", now=4000))
    assert do(complete(new, b"new", now=4001)) is True
    before = do.record("k")
    assert do(forget(old, now=4002)) is False
    assert do.record("k") == before


def test_forgetting_does_not_prolong(do: Do) -> None:
    owner = do(claim("k", retention=DAY, now=0))
    assert do(complete(owner, b"x", now=1)) is True
    assert do(forget(owner, now=DAY - 1)) is True
    assert do(reap(now=DAY)) == 1
