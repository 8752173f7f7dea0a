"""The fence: who was replaced changes nothing, and learns it (I3, I4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from retrysafe.core.ops import Op
from retrysafe.core.records import CLOSED, Record
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS, SECOND_MICROS
from retrysafe.testing.builders import (
    KeyHolder,
    advance,
    claim,
    complete,
    forget,
    reap,
    record_of,
    release,
    renew,
    resolve,
    suspect,
)
from retrysafe.testing.driver import Do

LATER_SECONDS = 100.0

OPEN_WRITES: dict[str, Callable[[KeyHolder], Op[bool]]] = {
    "renew": lambda held: renew(held, lease=999, now=LATER_SECONDS),
    "advance": lambda held: advance(held, "zombie", b"zombie", on_lapse="rerun", lease=999, now=LATER_SECONDS),
    "complete": lambda held: complete(held, b"zombie", now=LATER_SECONDS),
    "release": lambda held: release(held, "zombie", now=LATER_SECONDS),
    "suspect": lambda held: suspect(held, "zombie", now=LATER_SECONDS),
    "sweep": lambda held: suspect(held, "zombie", lapsed_only=True, now=LATER_SECONDS),
}
WRITES: dict[str, Callable[[KeyHolder], Op[bool]]] = {
    **OPEN_WRITES,
    "resolve": lambda held: resolve(held, b"zombie", "zombie", now=LATER_SECONDS),
    "resolve-no": lambda held: resolve(held, None, "zombie", now=LATER_SECONDS),
    "forget": lambda held: forget(held, now=LATER_SECONDS),
}

every_open_write = pytest.mark.parametrize("write", OPEN_WRITES.values(), ids=OPEN_WRITES.keys())


# Each state a record can be in, with the reply of the claim that owns it now ----------------------


def claimed(do: Do) -> Record:
    do(claim("k", lease=10, on_lapse="uncertain", now=0))
    return do.record("k")


def released(do: Do) -> Record:
    assert do(release(do(claim("k", now=0)), now=1))
    return do.record("k")


def completed(do: Do) -> Record:
    assert do(complete(do(claim("k", now=0)), b"first", now=1))
    return do.record("k")


def uncertain(do: Do) -> Record:
    assert do(suspect(do(claim("k", now=0)), now=1))
    return do.record("k")


STATES = [claimed, released, completed, uncertain]
every_state = pytest.mark.parametrize("arrange", STATES, ids=lambda arrange: arrange.__name__)


def build_wrong_fences(record: Record) -> dict[str, Record]:
    """Fences that are nearly the right one."""
    return {
        "next attempt": record._replace(attempt=record.attempt + 1),
        "former attempt": record._replace(attempt=record.attempt - 1),
        "other token": record._replace(token=b"\xff" * 16),
        "empty token": record._replace(token=b""),
        "half a token": record._replace(token=record.token[:8]),
        "longer token": record._replace(token=record.token + b"\x00"),
        "neither": record._replace(attempt=99, token=b"\x00" * 16),
    }


def assert_refused(do: Do, op: Op[bool], before: Record, what: str = "") -> None:
    assert do(op) is False, what
    assert do.record(before, now=LATER_SECONDS) == before, what


def assert_all_refused(do: Do, held: KeyHolder, before: Record, names: Iterable[str] = WRITES) -> None:
    """A refused write changes nothing, so one record will do for all of them."""
    for name in names:
        assert_refused(do, WRITES[name](held), before, name)


@every_state
def test_a_wrong_fence_changes_nothing(do: Do, arrange: Callable[[Do], Record]) -> None:
    before = arrange(do)
    for name, write in WRITES.items():
        told = {stranger: do(write(fence)) for stranger, fence in build_wrong_fences(before).items()}
        assert [stranger for stranger, done in told.items() if done is not False] == [], name
        assert do.record(before, now=LATER_SECONDS) == before, name


def test_a_record_that_is_not_there_cannot_be_written(do: Do) -> None:
    ghost = record_of(do(claim("k", now=0)))._replace(id=b"\x01" * 32)
    for name, write in WRITES.items():
        assert do(write(ghost)) is False, name
    assert do(claim("k", now=1)).record == do.record("k")


def test_after_a_takeover_the_former_owner_is_a_stranger(do: Do) -> None:
    slow = do(claim("k", lease=10, on_lapse="rerun", now=0))
    fast = record_of(do(claim("k", lease=1000, on_lapse="rerun", now=11)))
    assert_all_refused(do, slow, fast)


def test_after_a_takeover_that_is_settled(do: Do) -> None:
    """I5: the second attempt's answer is what counts, whatever the first one brings."""
    slow = do(claim("k", lease=10, on_lapse="rerun", now=0))
    fast = do(claim("k", lease=10, on_lapse="rerun", now=11))
    assert do(complete(fast, b"fresh", now=12)) is True
    assert_all_refused(do, slow, do.record("k"))


def test_after_a_release_and_the_next_claim(do: Do) -> None:
    first = do(claim("k", now=0))
    assert do(release(first, now=1))
    second = record_of(do(claim("k", lease=1000, now=2)))
    assert_all_refused(do, first, second)


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "not-reaped"])
def test_after_expiry_and_rebirth(do: Do, reaped: bool) -> None:
    """I3: attempt 1 again, but with another token. The zombie of the former life touches nothing."""
    old = do(claim("k", retention=1, now=-8000))
    assert do(complete(old, b"old life", now=-7999))
    if reaped:
        assert do(reap(now=-7999 + 3600)) == 1
        assert [name for name, write in WRITES.items() if do(write(old)) is not False] == []
    new = record_of(do(claim("k", lease=10_000, now=0)))
    assert (new.attempt, record_of(old).attempt) == (1, 1)
    assert_all_refused(do, old, new)
    assert do(complete(new, b"new life", now=1)) is True
    assert_all_refused(do, old, do.record("k"))


# What a settled record still lets its own last owner do: nothing but be recognised ----------------


def test_completed_is_closed_for_its_own_owner_too(do: Do) -> None:
    before = completed(do)
    names = ["renew", "advance", "release", "suspect", "sweep", "resolve", "resolve-no"]
    assert_all_refused(do, before, before, names)


def test_released_is_closed_for_its_own_owner_too(do: Do) -> None:
    before = released(do)
    assert_all_refused(do, before, before, ["renew", "advance", "complete", "suspect", "sweep", "resolve"])


def test_a_claimed_record_is_neither_resolved_nor_forgotten(do: Do) -> None:
    do(claim("k", lease=LATER_SECONDS + 1, on_lapse="uncertain", now=0))
    before = do.record("k")
    assert_all_refused(do, before, before, ["resolve", "resolve-no", "forget"])


def test_an_uncertain_record_is_not_forgotten(do: Do) -> None:
    before = uncertain(do)
    assert_refused(do, forget(before, now=LATER_SECONDS), before)


# Silent, but not replaced: still the owner ---------------------------------------------------------


@pytest.mark.parametrize("on_lapse", ["resume", "rerun", "uncertain"])
@every_open_write
def test_a_lapsed_owner_nobody_replaced_still_owns(
    do: Do, write: Callable[[KeyHolder], Op[bool]], on_lapse: Any
) -> None:
    held = do(claim("k", lease=10, on_lapse=on_lapse, now=0))
    op = write(held)
    expected = not (getattr(op, "lapsed_only", False) and on_lapse != "uncertain")
    assert do(op) is expected


def test_renew_moves_the_lease_and_nothing_else(do: Do) -> None:
    held = record_of(do(claim("k", lease=10, now=0)))
    assert do(renew(held, lease=20, now=5)) is True
    assert do.record("k") == held._replace(lease_until=25 * SECOND_MICROS)


def test_renew_may_hold_for_ever(do: Do) -> None:
    held = record_of(do(claim("k", lease=100, now=0)))
    assert do(renew(held, lease=float("inf"), now=5)) is True
    assert do.record("k").lease_until == FOREVER_MICROS


def test_advance_writes_point_progress_and_what_a_lapse_means(do: Do) -> None:
    held = record_of(do(claim("k", lease=10, on_lapse="uncertain", input=b"in", now=0)))
    progress = bytes(range(256))
    assert do(advance(held, "charged", progress, on_lapse="resume", lease=20, now=5)) is True
    assert do.record("k") == held._replace(
        point="charged", progress=progress, on_lapse="resume", lease_until=25 * SECOND_MICROS, advances=1
    )
    assert do(advance(held, "shipped", b"", on_lapse="rerun", lease=20, now=6, number=2)) is True
    after = do.record("k")
    assert (after.point, after.progress, after.on_lapse) == ("shipped", b"", "rerun")


@pytest.mark.parametrize("name", ["renew", "advance", "complete", "release"])
def test_the_owner_of_a_swept_record_may_come_back(do: Do, name: str) -> None:
    """It is the best witness there is."""
    held = do(claim("k", lease=10, on_lapse="uncertain", now=0))
    assert do(suspect(held, "swept", lapsed_only=True, now=11)) is True
    assert do.record("k").state is State.UNCERTAIN
    assert do(OPEN_WRITES[name](held)) is True
    expected = {"complete": State.COMPLETED, "release": State.RELEASED}.get(name, State.CLAIMED)
    after = do.record("k")
    assert (after.state, after.attempt) == (expected, 1)
    assert after.note == ("zombie" if name == "release" else "")


@pytest.mark.parametrize("swept", [False, True], ids=["claimed", "swept before"])
def test_an_owner_that_gave_up_is_not_brought_back_by_what_it_sent_before(do: Do, swept: bool) -> None:
    """I32: a renewal or an advance that was under way when its owner said so wiped the dead letter's note."""
    held = record_of(do(claim("k", lease=10, on_lapse="uncertain", now=0)))
    if swept:
        assert do(suspect(held, "swept", lapsed_only=True, now=11)) is True
    assert do(suspect(held, "dead letter", now=12)) is True
    before = do.record("k")
    assert (before.state, before.note, before.advances) == (State.UNCERTAIN, "dead letter", CLOSED)
    assert do(renew(held, lease=30, now=13)) is False
    assert do(advance(held, lease=30, now=13)) is False
    assert do.record("k") == before


@pytest.mark.parametrize("name", ["complete", "release"])
def test_an_owner_that_gave_up_may_still_tell_how_it_ended(do: Do, name: str) -> None:
    held = do(claim("k", lease=10, on_lapse="uncertain", now=0))
    assert do(suspect(held, "stopped half way", now=5)) is True
    assert do(OPEN_WRITES[name](held)) is True
    assert do.record("k").state is (State.COMPLETED if name == "complete" else State.RELEASED)


# The sweeper (rule 9) -----------------------------------------------------------------------------


def test_the_sweeper_never_accuses_a_living_owner(do: Do) -> None:
    held = record_of(do(claim("k", lease=10, on_lapse="uncertain", now=0)))
    assert do(suspect(held, "swept", lapsed_only=True, now=9.999999)) is False
    assert do.record("k") == held


def test_the_sweeper_comes_too_late_for_a_renewed_lease(do: Do) -> None:
    held = do(claim("k", lease=10, on_lapse="uncertain", now=0))
    assert do(renew(held, lease=30, now=11)) is True
    before = do.record("k")
    assert do(suspect(held, "swept", lapsed_only=True, now=12)) is False
    assert do.record("k") == before


@pytest.mark.parametrize("on_lapse", ["resume", "rerun"])
def test_the_sweeper_leaves_what_may_be_taken_over(do: Do, on_lapse: Any) -> None:
    held = record_of(do(claim("k", lease=10, on_lapse=on_lapse, now=0)))
    assert do(suspect(held, "swept", lapsed_only=True, now=11)) is False
    assert do.record("k") == held


def test_suspect_keeps_everything_but_state_and_note(do: Do) -> None:
    held = record_of(do(claim("k", lease=10, input=b"in", now=0)))
    assert do(suspect(held, "the socket closed: 'ä' \x01 \"", now=1)) is True
    note = "the socket closed: 'ä' \x01 \""
    assert do.record("k") == held._replace(state=State.UNCERTAIN, note=note, advances=CLOSED)
