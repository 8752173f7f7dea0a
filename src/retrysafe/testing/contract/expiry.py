"""Time: exact boundaries, which records expire and which never do (I12, I13)."""

from __future__ import annotations

import math

import pytest

from retrysafe.core.judge import judge
from retrysafe.core.outcomes import Busy, Execute, Replay
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS, SECOND_MICROS
from retrysafe.testing.builders import (
    DAY,
    TICK,
    advance,
    claim,
    complete,
    lookup,
    reap,
    record_of,
    release,
    renew,
    resolve,
    stats,
    suspect,
)
from retrysafe.testing.driver import Do

CENTURIES_SECONDS = 200 * 365 * DAY
AROUND = {"a tick before": (-TICK, False), "on it": (0.0, True), "a tick after": (TICK, True)}


# To the tick --------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_lapse", ["resume", "rerun"])
def test_a_lease_lapses_on_its_tick(do: Do, on_lapse: OnLapse) -> None:
    for key, (offset, over) in AROUND.items():
        do(claim(key, lease=30, on_lapse=on_lapse, now=0))
        op = claim(key, now=30 + offset)
        assert isinstance(judge(op, do(op)), Execute if over else Busy), key


def test_a_renewed_lease_lapses_on_its_new_tick(do: Do) -> None:
    for key, (offset, over) in AROUND.items():
        owner = do(claim(key, lease=30, on_lapse="rerun", now=0))
        assert do(renew(owner, lease=30, now=29)) is True
        assert do(claim(key, now=59 + offset)).granted is over, key


def test_the_sweeper_may_suspect_from_the_tick_on(do: Do) -> None:
    for key, (offset, over) in AROUND.items():
        owner = do(claim(key, lease=30, on_lapse="uncertain", now=0))
        assert do(suspect(owner, "swept", lapsed_only=True, now=30 + offset)) is over, key


@pytest.mark.parametrize("ending", ["completed", "released"])
def test_a_settled_record_expires_on_its_tick(do: Do, ending: str) -> None:
    for key, (offset, over) in AROUND.items():
        owner = do(claim(key, retention=DAY, now=0))
        assert do(complete(owner, b"x", now=1) if ending == "completed" else release(owner, now=1)) is True
        op = claim(key, body=b"another request", now=DAY + offset)
        assert do(op).granted is over, key


def test_a_replay_ends_on_the_tick(do: Do) -> None:
    for key, (offset, over) in AROUND.items():
        assert do(complete(do(claim(key, retention=DAY, now=0)), b"x", now=1)) is True
        op = claim(key, now=DAY + offset)
        assert isinstance(judge(op, do(op)), Execute if over else Replay), key


def test_the_reaper_takes_from_the_tick_on(do: Do) -> None:
    for key, (offset, over) in AROUND.items():
        assert do(complete(do(claim(key, retention=DAY, now=0)), b"x", now=1)) is True
        assert do(reap(now=DAY + offset)) == (2 if key == "on it" else int(over)), key  # with the one left by the first
        assert (do(lookup(key)).record is None) is over, key


# How long a settled record is kept ----------------------------------------------------------------


def test_retention_counts_from_the_first_claim(do: Do) -> None:
    owner = do(claim("k", retention=DAY, now=1000))
    assert do(complete(owner, b"x", now=5000)) is True
    assert do.record("k").expires == int(1000 + DAY) * SECOND_MICROS


def test_retention_counts_from_the_first_claim_over_attempts(do: Do) -> None:
    assert do(release(do(claim("k", retention=DAY, now=1000)), now=1001)) is True
    second = do(claim("k", retention=99 * DAY, now=2000))
    assert do(complete(second, b"x", now=3000)) is True
    assert do.record("k").expires == int(1000 + DAY) * SECOND_MICROS


@pytest.mark.parametrize("ending", ["completed", "released", "resolved"])
def test_it_is_kept_at_least_an_hour_after_it_ended(do: Do, ending: str) -> None:
    owner = do(claim("k", retention=10, now=0))
    if ending == "resolved":
        assert do(suspect(owner, now=100)) is True
    end = {
        "completed": complete(owner, b"x", now=5000),
        "released": release(owner, now=5000),
        "resolved": resolve(owner, b"x", now=5000),
    }[ending]
    assert do(end) is True
    assert do.record("k").expires == 5000 * SECOND_MICROS + HOUR_MICROS
    assert do(reap(now=5000 + 3600 - TICK)) == 0
    assert do(reap(now=5000 + 3600)) == 1


def test_for_ever_is_for_ever(do: Do) -> None:
    owner = do(claim("k", retention=math.inf, now=0))
    assert record_of(owner).retention == FOREVER_MICROS
    assert do(complete(owner, b"x", now=1)) is True
    assert do.record("k").expires == FOREVER_MICROS
    assert do(reap(now=CENTURIES_SECONDS)) == 0
    op = claim("k", now=CENTURIES_SECONDS)
    assert isinstance(judge(op, do(op)), Replay)


def test_sums_stop_at_for_ever(do: Do) -> None:
    owner = do(claim("k", lease=math.inf, retention=math.inf, on_lapse="rerun", now=5000))
    assert record_of(owner).lease_until == FOREVER_MICROS
    assert do(renew(owner, lease=math.inf, now=6000)) is True
    assert do.record("k").lease_until == FOREVER_MICROS
    assert do(claim("k", now=CENTURIES_SECONDS)).granted is False


# What never expires (I13) -------------------------------------------------------------------------


def assert_still_there_after_centuries(do: Do) -> None:
    before = do.record("k")
    assert before.expires == FOREVER_MICROS
    for now in (DAY, CENTURIES_SECONDS):
        assert do(reap(now=now)) == 0
        assert do(stats(now=now)).expired == 0
    assert do.record("k", now=CENTURIES_SECONDS) == before


@pytest.mark.parametrize("on_lapse", ["resume", "rerun", "uncertain"])
def test_claimed_never_expires(do: Do, on_lapse: OnLapse) -> None:
    do(claim("k", lease=1, retention=1, on_lapse=on_lapse, now=0))
    assert_still_there_after_centuries(do)


def test_claimed_again_after_release_never_expires(do: Do) -> None:
    """A released record has an expiry. A takeover removes it."""
    assert do(release(do(claim("k", retention=1, now=0)), now=0)) is True
    assert do(claim("k", retention=1, now=1)).granted
    assert_still_there_after_centuries(do)


def test_uncertain_never_expires(do: Do) -> None:
    assert do(suspect(do(claim("k", retention=1, now=0)), now=0)) is True
    assert_still_there_after_centuries(do)
    op = claim("k", body=b"another request", now=CENTURIES_SECONDS)
    assert do(op).granted is False


def test_released_at_a_recovery_point_never_expires(do: Do) -> None:
    """A recovery point is unfinished work. It can be resumed at any time."""
    owner = do(claim("k", retention=1, now=0))
    assert do(advance(owner, "charged", b"half", now=0)) is True
    assert do(release(owner, now=0)) is True
    assert_still_there_after_centuries(do)
    taken = do(claim("k", now=CENTURIES_SECONDS))
    assert taken.granted
    assert (record_of(taken).point, record_of(taken).attempt) == ("charged", 2)


def test_resolved_as_not_happened_at_a_recovery_point_never_expires(do: Do) -> None:
    owner = do(claim("k", retention=1, now=0))
    assert do(advance(owner, "charged", b"half", now=0)) is True
    assert do(suspect(owner, now=0)) is True
    assert do(resolve(owner, None, now=0)) is True
    assert_still_there_after_centuries(do)


def test_a_recovery_point_does_not_keep_an_answer_alive(do: Do) -> None:
    owner = do(claim("k", retention=1, now=0))
    assert do(advance(owner, "charged", b"half", now=0)) is True
    assert do(complete(owner, b"x", now=0)) is True
    assert do.record("k").expires == HOUR_MICROS
    assert do(reap(now=3600)) == 1


# The reaper ---------------------------------------------------------------------------------------


def test_reap_takes_no_more_than_it_was_told_and_counts_exactly(do: Do) -> None:
    for number in range(7):
        assert do(complete(do(claim(f"k{number}", retention=1, now=0)), b"x", now=0)) is True
    assert do(complete(do(claim("fresh", retention=DAY, now=0)), b"x", now=0)) is True
    do(claim("open", retention=1, lease=1, now=0))
    assert do(stats(now=3600)).expired == 7
    assert [do(reap(3, now=3600)) for _ in range(4)] == [3, 3, 1, 0]
    assert do(lookup("k3")).record is None
    assert do.record("fresh").state is State.COMPLETED
    assert do.record("open").state is State.CLAIMED


def test_reap_on_an_empty_store(do: Do) -> None:
    assert do(reap(now=CENTURIES_SECONDS)) == 0


def test_reaped_and_born_again_is_a_stranger_to_its_former_owner(do: Do) -> None:
    """I3: the fence of a reaped record does not match the new one."""
    old = do(claim("k", retention=1, now=0))
    assert do(complete(old, b"old", now=0)) is True
    assert do(reap(now=3600)) == 1
    assert do(complete(old, b"old", now=3600)) is False, "there is nothing left to recognise"
    new = do(claim("k", now=3601))
    assert record_of(new).attempt == 1
    assert do(complete(old, b"old", now=3602)) is False
    assert do.record("k") == new.record


def test_a_late_reaper_changes_nothing(do: Do) -> None:
    """I12: expiry is a comparison of times. A claim treats an expired record as absent, and the reaper leaves the new
    one."""
    assert do(complete(do(claim("k", retention=1, now=0)), b"x", now=0)) is True
    reborn = do(claim("k", now=4000))
    assert reborn.granted
    assert do(reap(now=4001)) == 0
    assert do.record("k") == reborn.record


def test_an_expired_record_is_still_shown_until_it_is_reaped_or_reborn(do: Do) -> None:
    """A lookup is for people: it shows what is stored, without a decision."""
    assert do(complete(do(claim("k", retention=1, now=0)), b"x", now=0)) is True
    found = do(lookup("k", now=4000))
    assert found.record is not None
    assert found.record.expired(found.now)
