"""The table in states.py and the moves in moves.py say the same: every situation is tried, every change is an arrow of
the table, and every arrow of the table is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from retrysafe.core import moves
from retrysafe.core.ops import (
    Advance,
    Claim,
    Complete,
    Fenced,
    Forget,
    Reap,
    Release,
    Renew,
    Resolve,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import Answer, Fence, Record
from retrysafe.core.states import OPEN, SETTLED, STATES, TRANSITIONS, State, has_transition
from retrysafe.core.times import HOUR_MICROS
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing import builders

NOW = 10_000_000
ANSWER = Answer(201, b"done")
OTHER_ANSWER = Answer(201, b"something else")
RIGHT = Fence(3, b"t" * 16)
FENCES = {
    "right": RIGHT,
    "former attempt": Fence(2, b"t" * 16),
    "former life": Fence(3, b"x" * 16),
}
MOVES = {
    "renew": lambda fence: Renew(b"i", fence, 50),
    "advance": lambda fence: Advance(b"i", fence, 1, "p", b"progress", "resume", 50),
    "complete": lambda fence: Complete(b"i", fence, ANSWER),
    "release": lambda fence: Release(b"i", fence, "why"),
    "withdraw": lambda fence: Withdraw(b"i", fence, "why"),
    "suspect": lambda fence: Suspect(b"i", fence, "why"),
    "suspect lapsed": lambda fence: Suspect(b"i", fence, "why", lapsed_only=True),
    "resolve done": lambda fence: Resolve(b"i", fence, ANSWER, "why"),
    "resolve not done": lambda fence: Resolve(b"i", fence, None, "why"),
    "forget": lambda fence: Forget(b"i", fence),
}
SAME = builders.fingerprint(b"same")
OTHER = builders.fingerprint(b"other")


def ask(fingerprint: object = SAME, token: bytes = b"n" * 16) -> Claim:
    return builders.claim("k", fingerprint=fingerprint, token=token, now=None)  # type: ignore[arg-type]  # two of one type


def situations() -> Iterator[Record | None]:
    """Every state × lease live or lapsed × on_lapse × expired or not × at a recovery point or not; and no record."""
    yield None
    states = product(State, (NOW + 5, NOW), ("resume", "uncertain", "rerun"), (NOW + 5, NOW), ("", "charged"))
    for state, lease_until, on_lapse, expires, point in states:
        yield moves.build_new_record(ask(), NOW)._replace(
            state=state,
            attempt=RIGHT.attempt,
            token=RIGHT.token,
            lease_until=lease_until,
            on_lapse=on_lapse,  # type: ignore[arg-type]  # product() widens the literals to str
            expires=expires if state in SETTLED else 2**53 - 1,
            point=point,
            answer=ANSWER if state is State.COMPLETED else None,
            completed=NOW - HOUR_MICROS if state in SETTLED else 0,
            input=b"what to do",
        )


def state_of(record: Record | None) -> State | None:
    return None if record is None else record.state


def changes() -> Iterator[tuple[State | None, str, State | None]]:
    """Each change that anything can bring about."""
    for before in situations():
        for fingerprint in (SAME, OTHER):
            after, _ = moves.claim(before, ask(fingerprint), NOW)
            if after != before:
                yield state_of(before), "claim", state_of(after)
        for (name, make), fence in product(MOVES.items(), FENCES.values()):
            after, _ = moves.move(before, make(fence), NOW)
            if after != before:
                yield state_of(before), name.partition(" ")[0], state_of(after)
        yield from reaped(before)


def reaped(before: Record | None) -> Iterator[tuple[State | None, str, State | None]]:
    if before is not None:
        store = MemoryStore()
        store._records[before.id] = before
        if store.execute(Reap(10, NOW)):
            yield before.state, "reap", None


def test_the_table_is_exactly_what_can_happen() -> None:
    assert set(changes()) == {(arrow.source, arrow.move, arrow.target) for arrow in TRANSITIONS}


def test_no_arrow_is_drawn_twice() -> None:
    arrows = [(arrow.source, arrow.move, arrow.target) for arrow in TRANSITIONS]
    assert len(arrows) == len(set(arrows))


def test_may_reads_the_table() -> None:
    assert has_transition(None, "claim")
    assert has_transition(State.UNCERTAIN, "resolve")
    assert not has_transition(State.RELEASED, "resolve")
    assert not has_transition(State.COMPLETED, "complete")
    assert not has_transition(State.UNCERTAIN, "claim")


def test_every_state_is_open_or_settled_and_stored_by_its_name() -> None:
    assert set(State) == OPEN | SETTLED
    assert not OPEN & SETTLED
    assert {state.name.lower(): state for state in State} == STATES


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("fence", ["former attempt", "former life"])
def test_a_wrong_fence_changes_nothing_and_is_told(name: str, fence: str) -> None:
    for before in situations():
        after, applied = moves.move(before, MOVES[name](FENCES[fence]), NOW)
        assert after == before
        assert applied is False


@pytest.mark.parametrize("name", MOVES)
def test_told_no_means_nothing_changed(name: str) -> None:
    for before in situations():
        after, applied = moves.move(before, MOVES[name](RIGHT), NOW)
        assert applied or after == before


@pytest.mark.parametrize("name", MOVES)
def test_a_move_sent_again_recognises_itself(name: str) -> None:
    """I11: after a lost reply the same operation gives the same answer, and changes nothing further."""
    op: Fenced = MOVES[name](RIGHT)
    for before in situations():
        after, applied = moves.move(before, op, NOW)
        if applied:
            assert moves.move(after, op, NOW) == (after, True)


@pytest.mark.parametrize("state", sorted(OPEN, key=str))
def test_a_second_different_answer_under_the_same_fence_is_refused(state: State) -> None:
    """I5: an answer is written once."""
    before = moves.build_new_record(ask(), 0)._replace(state=state)
    done, _ = moves.move(before, Complete(b"i", before.fence, ANSWER), NOW)
    assert moves.move(done, Complete(b"i", before.fence, OTHER_ANSWER), NOW) == (done, False)


def test_a_claim_sent_again_recognises_its_own_grant() -> None:
    for before in situations():
        claim = ask()
        after, reply = moves.claim(before, claim, NOW)
        if reply.granted:
            assert moves.claim(after, claim, NOW) == (after, reply)


def test_a_refused_claim_writes_nothing() -> None:
    for before, fingerprint in product(situations(), (SAME, OTHER)):
        after, reply = moves.claim(before, ask(fingerprint), NOW)
        assert reply.record == after
        assert reply.granted or after == before


def test_a_takeover_keeps_the_life_and_changes_the_fence() -> None:
    born = moves.build_new_record(ask(token=b"o" * 16), 0)
    before = born._replace(state=State.RELEASED, point="charged", progress=b"p", input=b"i")
    after, _ = moves.claim(before, ask(), NOW)
    assert after is not None
    assert (after.run, after.point, after.progress, after.input) == (before.run, "charged", b"p", b"i")
    assert (after.attempt, after.token) == (before.attempt + 1, b"n" * 16)
    assert after.created == before.created


def test_a_new_life_shares_nothing_with_the_old_one() -> None:
    """I3, I17: another token although attempt is 1 again, another run, so another payment downstream."""
    before = moves.build_new_record(ask(token=b"o" * 16), 0)
    done, _ = moves.move(before, Complete(b"i", before.fence, ANSWER), 0)
    assert done is not None
    after, reply = moves.claim(done, ask(OTHER), done.expires)
    assert reply.granted
    assert after is not None
    assert (after.attempt, after.answer, after.created) == (1, None, done.expires)
    assert after.run != before.run
    assert after.fence != before.fence


def test_open_records_never_expire() -> None:
    for before in situations():
        if before is not None and before.state in OPEN:
            for name in ("renew", "advance", "suspect"):
                after, _ = moves.move(before, MOVES[name](RIGHT), NOW)
                assert after is not None
                assert not after.expired(NOW + 10**15)


def test_released_at_a_recovery_point_never_expires() -> None:
    """I13: that is unfinished work."""
    before = moves.build_new_record(ask(), 0)
    plain, _ = moves.move(before, Release(b"i", before.fence), NOW)
    half, _ = moves.move(before._replace(point="charged"), Release(b"i", before.fence), NOW)
    assert plain is not None
    assert half is not None
    assert plain.expired(10**15)
    assert not half.expired(10**15)


def test_an_answer_is_kept_an_hour_even_when_its_retention_is_over() -> None:
    before = moves.build_new_record(builders.claim("k", retention=1), 0)
    late = 10 * moves.HOUR_MICROS
    done, _ = moves.move(before, Complete(b"i", before.fence, ANSWER), late)
    assert done is not None
    assert done.expires == late + moves.HOUR_MICROS
