"""The fencing token: a former owner changes nothing, and its writes return False (I3, I4)."""

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
    "renew": lambda owner: renew(owner, lease=999, now=LATER_SECONDS),
    "advance": lambda owner: advance(owner, "zombie", b"zombie", on_lapse="rerun", lease=999, now=LATER_SECONDS),
    "complete": lambda owner: complete(owner, b"zombie", now=LATER_SECONDS),
    "release": lambda owner: release(owner, "zombie", now=LATER_SECONDS),
    "suspect": lambda owner: suspect(owner, "zombie", now=LATER_SECONDS),
    "sweep": lambda owner: suspect(owner, "zombie", lapsed_only=True, now=LATER_SECONDS),
}
WRITES: dict[str, Callable[[KeyHolder], Op[bool]]] = {
    **OPEN_WRITES,
    "resolve": lambda owner: resolve(owner, b"zombie", "zombie", now=LATER_SECONDS),
    "resolve-no": lambda owner: resolve(owner, None, "zombie", now=LATER_SECONDS),
    "forget": lambda owner: forget(owner, now=LATER_SECONDS),
}

every_open_write = pytest.mark.parametrize("write", OPEN_WRITES.values(), ids=OPEN_WRITES.keys())


# One record in each state ------------------------------------------------------------------------


def create_claimed(do: Do) -> Record:
    do(claim("k", lease=10, on_lapse="uncertain", now=0))
    return do.record("k")


def create_released(do: Do) -> Record:
    assert do(release(do(claim("k", now=0)), now=1))
    return do.record("k")


def create_completed(do: Do) -> Record:
    assert do(complete(do(claim("k", now=0)), b"first", now=1))
    return do.record("k")


def create_uncertain(do: Do) -> Record:
    assert do(suspect(do(claim("k", now=0)), now=1))
    return do.record("k")


STATES = [create_claimed, create_released, create_completed, create_uncertain]
every_state = pytest.mark.parametrize("create", STATES, ids=lambda create: create.__name__.removeprefix("create_"))


def build_wrong_fences(record: Record) -> dict[str, Record]:
    """Fences that differ a little from the right one."""
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


def assert_all_refused(do: Do, owner: KeyHolder, before: Record, names: Iterable[str] = WRITES) -> None:
    """A refused write changes nothing, so all of them can use one record."""
    for name in names:
        assert_refused(do, WRITES[name](owner), before, name)


@every_state
def test_a_wrong_fence_changes_nothing(do: Do, create: Callable[[Do], Record]) -> None:
    before = create(do)
    for name, write in WRITES.items():
        replies = {wrong: do(write(fence)) for wrong, fence in build_wrong_fences(before).items()}
        assert [wrong for wrong, done in replies.items() if done is not False] == [], name
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
    """I5: the answer of the second attempt stays, whatever the first attempt writes later."""
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
    """I3: the new record has attempt 1 again, but another token. The owner of the expired record changes nothing."""
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


# A settled record recognises its last owner, and accepts no other write ---------------------------


def test_completed_is_closed_for_its_own_owner_too(do: Do) -> None:
    before = create_completed(do)
    names = ["renew", "advance", "release", "suspect", "sweep", "resolve", "resolve-no"]
    assert_all_refused(do, before, before, names)


def test_released_is_closed_for_its_own_owner_too(do: Do) -> None:
    before = create_released(do)
    assert_all_refused(do, before, before, ["renew", "advance", "complete", "suspect", "sweep", "resolve"])


def test_a_claimed_record_is_neither_resolved_nor_forgotten(do: Do) -> None:
    do(claim("k", lease=LATER_SECONDS + 1, on_lapse="uncertain", now=0))
    before = do.record("k")
    assert_all_refused(do, before, before, ["resolve", "resolve-no", "forget"])


def test_an_uncertain_record_is_not_forgotten(do: Do) -> None:
    before = create_uncertain(do)
    assert_refused(do, forget(before, now=LATER_SECONDS), before)


# An owner with a lapsed lease, before any takeover ------------------------------------------------


@pytest.mark.parametrize("on_lapse", ["resume", "rerun", "uncertain"])
@every_open_write
def test_a_lapsed_owner_nobody_replaced_still_owns(
    do: Do, write: Callable[[KeyHolder], Op[bool]], on_lapse: Any
) -> None:
    owner = do(claim("k", lease=10, on_lapse=on_lapse, now=0))
    op = write(owner)
    expected = not (getattr(op, "lapsed_only", False) and on_lapse != "uncertain")
    assert do(op) is expected


def test_renew_moves_the_lease_and_nothing_else(do: Do) -> None:
    owner = record_of(do(claim("k", lease=10, now=0)))
    assert do(renew(owner, lease=20, now=5)) is True
    assert do.record("k") == owner._replace(lease_until=25 * SECOND_MICROS)


def test_renew_may_hold_for_ever(do: Do) -> None:
    owner = record_of(do(claim("k", lease=100, now=0)))
    assert do(renew(owner, lease=float("inf"), now=5)) is True
    assert do.record("k").lease_until == FOREVER_MICROS


def test_advance_writes_point_progress_and_what_a_lapse_means(do: Do) -> None:
    owner = record_of(do(claim("k", lease=10, on_lapse="uncertain", input=b"in", now=0)))
    progress = bytes(range(256))
    assert do(advance(owner, "charged", progress, on_lapse="resume", lease=20, now=5)) is True
    assert do.record("k") == owner._replace(
        point="charged", progress=progress, on_lapse="resume", lease_until=25 * SECOND_MICROS, advances=1
    )
    assert do(advance(owner, "shipped", b"", on_lapse="rerun", lease=20, now=6, number=2)) is True
    after = do.record("k")
    assert (after.point, after.progress, after.on_lapse) == ("shipped", b"", "rerun")


@pytest.mark.parametrize("name", ["renew", "advance", "complete", "release"])
def test_the_owner_of_a_swept_record_may_come_back(do: Do, name: str) -> None:
    """The owner knows best what happened, so its write is accepted."""
    owner = do(claim("k", lease=10, on_lapse="uncertain", now=0))
    assert do(suspect(owner, "swept", lapsed_only=True, now=11)) is True
    assert do.record("k").state is State.UNCERTAIN
    assert do(OPEN_WRITES[name](owner)) is True
    expected = {"complete": State.COMPLETED, "release": State.RELEASED}.get(name, State.CLAIMED)
    after = do.record("k")
    assert (after.state, after.attempt) == (expected, 1)
    assert after.note == ("zombie" if name == "release" else "")


@pytest.mark.parametrize("swept", [False, True], ids=["claimed", "swept before"])
def test_an_owner_that_gave_up_is_not_brought_back_by_what_it_sent_before(do: Do, swept: bool) -> None:
    """I32: a renewal or an advance sent before may arrive late. It must not erase the note of the dead letter."""
    owner = record_of(do(claim("k", lease=10, on_lapse="uncertain", now=0)))
    if swept:
        assert do(suspect(owner, "swept", lapsed_only=True, now=11)) is True
    assert do(suspect(owner, "dead letter", now=12)) is True
    before = do.record("k")
    assert (before.state, before.note, before.advances) == (State.UNCERTAIN, "dead letter", CLOSED)
    assert do(renew(owner, lease=30, now=13)) is False
    assert do(advance(owner, lease=30, now=13)) is False
    assert do.record("k") == before


@pytest.mark.parametrize("name", ["complete", "release"])
def test_an_owner_that_gave_up_may_still_tell_how_it_ended(do: Do, name: str) -> None:
    owner = do(claim("k", lease=10, on_lapse="uncertain", now=0))
    assert do(suspect(owner, "stopped half way", now=5)) is True
    assert do(OPEN_WRITES[name](owner)) is True
    assert do.record("k").state is (State.COMPLETED if name == "complete" else State.RELEASED)


# The sweeper (rule 9) -----------------------------------------------------------------------------


def test_the_sweeper_never_accuses_a_living_owner(do: Do) -> None:
    owner = record_of(do(claim("k", lease=10, on_lapse="uncertain", now=0)))
    assert do(suspect(owner, "swept", lapsed_only=True, now=9.999999)) is False
    assert do.record("k") == owner


def test_the_sweeper_comes_too_late_for_a_renewed_lease(do: Do) -> None:
    owner = do(claim("k", lease=10, on_lapse="uncertain", now=0))
    assert do(renew(owner, lease=30, now=11)) is True
    before = do.record("k")
    assert do(suspect(owner, "swept", lapsed_only=True, now=12)) is False
    assert do.record("k") == before


@pytest.mark.parametrize("on_lapse", ["resume", "rerun"])
def test_the_sweeper_leaves_what_may_be_taken_over(do: Do, on_lapse: Any) -> None:
    owner = record_of(do(claim("k", lease=10, on_lapse=on_lapse, now=0)))
    assert do(suspect(owner, "swept", lapsed_only=True, now=11)) is False
    assert do.record("k") == owner


def test_suspect_keeps_everything_but_state_and_note(do: Do) -> None:
    owner = record_of(do(claim("k", lease=10, input=b"in", now=0)))
    assert do(suspect(owner, "the socket closed: 'ä' \x01 \"", now=1)) is True
    note = "the socket closed: 'ä' \x01 \""
    assert do.record("k") == owner._replace(state=State.UNCERTAIN, note=note, advances=CLOSED)
