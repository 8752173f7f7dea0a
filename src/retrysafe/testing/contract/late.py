"""Late copies (rule 13, I32): a write that arrives after its resend and after later writes changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retrysafe.core.judge import judge
from retrysafe.core.outcomes import Execute, Mismatch, Replay
from retrysafe.core.records import CLOSED, MAX_ENDED_TOKENS, Record
from retrysafe.core.states import State
from retrysafe.core.times import HOUR_MICROS, SECOND_MICROS
from retrysafe.testing.builders import (
    advance,
    claim,
    complete,
    fingerprint,
    record_of,
    release,
    renew,
    suspect,
)
from retrysafe.testing.driver import Do

# Advances ---------------------------------------------------------------------------------------


def test_a_late_advance_does_not_move_the_point_back(do: Do) -> None:
    """The first "email done" was delayed. If it moved the point back, the charge would be sent a second time."""
    owner = do(claim("k", on_lapse="resume", now=0))
    email = advance(owner, "email", b"done", on_lapse="resume", now=1)
    assert do(email) is True
    assert do(advance(owner, "charge", b"begun", on_lapse="uncertain", now=2, number=2)) is True
    before = do.record("k")
    assert do(replace(email, now=3 * SECOND_MICROS)) is False
    assert do.record("k") == before
    assert (before.point, before.on_lapse, before.advances) == ("charge", "uncertain", 2)


def test_an_advance_that_is_sent_again_is_recognised(do: Do) -> None:
    owner = do(claim("k", now=0))
    op = advance(owner, "charged", b"half", lease=20, now=1)
    assert do(op) is True
    before = do.record("k")
    assert do(replace(op, now=9 * SECOND_MICROS)) is True
    assert do.record("k") == before, "the second arrival changes nothing, not even the lease"


@pytest.mark.parametrize("number", [0, 1, 3, CLOSED])
def test_only_the_next_advance_is_obeyed(do: Do, number: int) -> None:
    owner = do(claim("k", now=0))
    assert do(advance(owner, "charged", b"half", now=1)) is True
    before = do.record("k")
    for point, progress in (("other", b"half"), ("charged", b"other")):
        assert do(advance(owner, point, progress, now=2, number=number)) is False
        assert do.record("k") == before


def test_every_attempt_counts_its_own_advances(do: Do) -> None:
    first = do(claim("k", lease=10, on_lapse="resume", now=0))
    assert do(advance(first, "a", b"1", lease=10, now=1)) is True
    second = record_of(do(claim("k", lease=10, on_lapse="resume", now=20)))
    assert (second.attempt, second.advances, second.point) == (2, 0, "a")
    assert do(advance(second, "b", b"2", lease=10, now=21)) is True
    assert do.record("k").advances == 1


def test_a_finished_advance_is_still_recognised_after_the_end(do: Do) -> None:
    owner = do(claim("k", now=0))
    op = advance(owner, "charged", b"half", now=1)
    assert do(op) is True
    assert do(complete(owner, now=2)) is True
    before = do.record("k")
    assert do(op) is True
    assert do.record("k") == before


# Claims -----------------------------------------------------------------------------------------


def end_attempt(do: Do, how: str) -> tuple[Record, int]:
    """End the first attempt of a key. Returns the record, and a time at which another attempt could begin."""
    first = record_of(do(claim("k", lease=10, retention=1, on_lapse="rerun", now=0, token=b"first")))
    if how == "released":
        assert do(release(first, now=5)) is True
        return do.record("k"), 6
    if how == "completed and expired":
        assert do(complete(first, now=5)) is True
        return do.record("k"), 5 + HOUR_MICROS // SECOND_MICROS
    if how == "uncertain":
        assert do(suspect(first, now=5)) is True
        return do.record("k"), 6
    second = record_of(do(claim("k", lease=10, retention=1, on_lapse="rerun", now=20, token=b"second")))
    if how == "taken over and released":
        assert do(release(second, now=21)) is True
        return do.record("k"), 22
    if how == "taken over and lapsed":
        return do.record("k"), 40
    assert how == "taken over, completed and expired"
    assert do(complete(second, now=21)) is True
    return do.record("k"), 21 + HOUR_MICROS // SECOND_MICROS


@pytest.mark.parametrize(
    "how",
    [
        "released",
        "completed and expired",
        "uncertain",
        "taken over and released",
        "taken over and lapsed",
        "taken over, completed and expired",
    ],
)
def test_a_token_is_granted_once(do: Do, how: str) -> None:
    """A copy of the first claim arrives when its attempt is over. If it were granted, no process would own the key, and
    it would become uncertain although nothing ran."""
    before, now = end_attempt(do, how)
    late = claim("k", lease=10, retention=1, on_lapse="rerun", now=now, token=b"first")
    reply = do(late)
    assert (reply.granted, reply.record) == (False, before)
    assert do.record("k") == before
    if how != "uncertain":
        assert do(replace(late, token=b"fresh")).granted, "another claim is granted"


def test_the_last_eight_ended_tokens_are_kept(do: Do) -> None:
    """Older tokens are not recognised: see docs/explanation/guarantees.md."""
    tokens = [b"token %d" % n for n in range(MAX_ENDED_TOKENS + 2)]
    for n, token in enumerate(tokens):
        owner = record_of(do(claim("k", on_lapse="rerun", now=n, token=token)))
        assert owner.ended == tuple(reversed(tokens[max(n - MAX_ENDED_TOKENS, 0) : n]))
        assert do(release(owner, now=n)) is True
    now = len(tokens)
    for token in tokens[1:]:
        assert do(claim("k", now=now, token=token)).granted is False
    assert do(claim("k", now=now, token=tokens[0])).granted is True


def test_a_new_life_remembers_the_tokens_of_the_old_one(do: Do) -> None:
    first = record_of(do(claim("k", retention=1, now=0, token=b"first")))
    assert do(complete(first, now=1)) is True
    again = record_of(do(claim("k", retention=1, now=1 + HOUR_MICROS // SECOND_MICROS, token=b"second")))
    assert (again.attempt, again.ended, again.run != first.run) == (1, (b"first",), True)


# Renewals ---------------------------------------------------------------------------------------


def test_a_renewal_never_shortens_the_lease(do: Do) -> None:
    owner = do(claim("k", lease=60, now=0))
    assert do(renew(owner, lease=10, now=1)) is True
    assert do.record("k").lease_until == 60 * SECOND_MICROS
    assert do(renew(owner, lease=60, now=1)) is True
    assert do.record("k").lease_until == 61 * SECOND_MICROS


# Forms of one request ---------------------------------------------------------------------------


def test_a_record_is_recognised_by_any_form_of_its_fingerprint(do: Do) -> None:
    """Rule 17: another release, or another key of the key ring, gives the same request another fingerprint."""
    forms = (fingerprint(b"older form"), fingerprint(b"oldest form"))
    oldest = record_of(do(claim("k", body=b"oldest form", on_lapse="rerun", lease=10, now=0)))
    again = replace(claim("k", body=b"new form", on_lapse="rerun", lease=10, now=20), alternatives=forms)
    taken = do(again)
    assert isinstance(judge(again, taken), Execute)
    assert record_of(taken).fingerprint == oldest.fingerprint, "what is stored stays as it was written"
    assert do(complete(taken, now=21)) is True
    replayed = replace(again, token=b"third", now=22 * SECOND_MICROS)
    assert isinstance(judge(replayed, do(replayed)), Replay)
    other = replace(claim("k", body=b"another request", now=22), alternatives=forms[:1])
    assert isinstance(judge(other, do(other)), Mismatch)
    assert do.record("k").state is State.COMPLETED
