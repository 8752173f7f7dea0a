"""Settling: an answer is written once (I5), recognised when sent again (I11), and replayed byte for byte (I6)."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from retrysafe.core.judge import judge
from retrysafe.core.ops import Op
from retrysafe.core.outcomes import Execute, Replay
from retrysafe.core.records import Answer, Gone
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import FOREVER_MICROS, SECOND_MICROS
from retrysafe.testing.builders import (
    TICK,
    KeyHolder,
    advance,
    answer,
    claim,
    complete,
    listing,
    lookup,
    reap,
    record_of,
    release,
    renew,
    resolve,
    stats,
    suspect,
    withdraw,
)
from retrysafe.testing.driver import Do

# Complete -----------------------------------------------------------------------------------------


def test_complete_settles(do: Do) -> None:
    owner = record_of(do(claim("k", input=b"in", now=0)))
    assert do(complete(owner, answer(b"ok", status=201), now=4)) is True
    assert do.record("k") == owner._replace(
        state=State.COMPLETED,
        answer=answer(b"ok", status=201),
        lease_until=4 * SECOND_MICROS,
        completed=4 * SECOND_MICROS,
        expires=owner.retention,
    )


OTHERS = {
    "body": answer(b"other"),
    "status": answer(b"first", status=202),
    "no headers": answer(b"first", headers=()),
    "more headers": answer(b"first", headers=[("content-type", "text/plain"), ("x", "1")]),
    "case of header": answer(b"first", headers=[("Content-Type", "text/plain")]),
    "gone": answer(b"first", gone="too_large"),
    "trailing NUL": answer(b"first\x00"),
    "empty": answer(b""),
}


def test_an_answer_is_written_once(do: Do) -> None:
    """I5: even with the same fence. A different answer is refused; it must not look like a success."""
    owner = do(claim("k", now=0))
    assert do(complete(owner, answer(b"first"), now=1)) is True
    before = do.record("k")
    for name, second in OTHERS.items():
        assert do(complete(owner, second, now=2)) is False, name
        assert do.record("k") == before, name


# Sent again ---------------------------------------------------------------------------------------


def build_endings(owner: KeyHolder) -> dict[str, tuple[Op[bool], bool]]:
    """Every operation that settles, and whether it needs an uncertain record."""
    return {
        "complete": (complete(owner, b"done", now=5), False),
        "release": (release(owner, "not now", now=5), False),
        "withdraw": (withdraw(owner, "a redirect", now=5), False),
        "suspect": (suspect(owner, "unknown", now=5), False),
        "resolve-yes": (resolve(owner, b"done", now=5), True),
        "resolve-no": (resolve(owner, None, now=5), True),
    }


NAMES = ["complete", "release", "withdraw", "suspect", "resolve-yes", "resolve-no"]


@pytest.mark.parametrize("name", NAMES)
def test_an_ending_recognises_its_own_earlier_success(do: Do, name: str) -> None:
    """I11: sent a second and a third time, it returns True and writes nothing."""
    owner = do(claim("k", now=0))
    op, from_uncertain = build_endings(owner)[name]
    if from_uncertain:
        assert do(suspect(owner, now=1)) is True
    assert do(op) is True
    before = do.record("k")
    for later in (5, 6, 3000):
        assert do(replace(op, now=later * SECOND_MICROS)) is True  # type: ignore[type-var]  # every ending has `now`
        assert do.record("k") == before


@pytest.mark.parametrize("name", NAMES)
def test_an_ending_is_not_recognised_once_somebody_else_had_the_key(do: Do, name: str) -> None:
    """I4: the state is the same, but the fence is not."""
    owner = do(claim("k", now=0))
    op, from_uncertain = build_endings(owner)[name]
    assert do(release(owner, now=1)) is True
    other = do(claim("k", now=2))
    assert do(suspect(other, now=3)) is True
    if not from_uncertain and name != "suspect":
        assert do(release(other, now=4)) is True
    before = do.record("k")
    assert do(op) is False
    assert do.record("k") == before


def test_renew_and_advance_may_be_sent_again(do: Do) -> None:
    owner = do(claim("k", lease=10, now=0))
    for op in (renew(owner, lease=20, now=1), advance(owner, "a", b"1", lease=20, now=2)):
        assert do(op) is True
        after = do.record("k")
        assert do(op) is True
        assert do.record("k") == after


# Release ------------------------------------------------------------------------------------------


def test_release_settles_without_an_answer(do: Do) -> None:
    owner = record_of(do(claim("k", input=b"in", now=0)))
    assert do(release(owner, "upstream said 503", now=4)) is True
    assert do.record("k") == owner._replace(
        state=State.RELEASED,
        note="upstream said 503",
        lease_until=4 * SECOND_MICROS,
        completed=4 * SECOND_MICROS,
        expires=owner.retention,
    )


def test_complete_after_release_is_refused(do: Do) -> None:
    owner = do(claim("k", now=0))
    assert do(release(owner, now=1)) is True
    assert do(complete(owner, b"too late", now=2)) is False
    assert do.record("k").answer is None


# Withdraw (I37) -----------------------------------------------------------------------------------


def test_withdraw_leaves_it_released_and_expired(do: Do) -> None:
    owner = record_of(do(claim("k", input=b"in", now=0)))
    assert do(withdraw(owner, "the router redirected it", now=4)) is True
    assert do.record("k") == owner._replace(
        state=State.RELEASED,
        note="the router redirected it",
        lease_until=4 * SECOND_MICROS,
        completed=4 * SECOND_MICROS,
        expires=4 * SECOND_MICROS,
    )


@pytest.mark.parametrize("body", [b"same", b"another request"])
def test_whoever_claims_what_was_withdrawn_begins_a_new_life(do: Do, body: bytes) -> None:
    """At the very time of the withdrawal, and with any request: the key counts as never used."""
    first = record_of(do(claim("k", body=b"same", input=b"first", now=0)))
    assert do(withdraw(first, now=4)) is True
    op = claim("k", body=body, input=b"second", now=4)
    outcome = judge(op, do(op))
    assert isinstance(outcome, Execute)
    assert (outcome.record.attempt, outcome.record.run) == (1, op.run)
    assert (outcome.record.created, outcome.record.input, outcome.record.note) == (4 * SECOND_MICROS, b"second", "")
    assert outcome.record.run != first.run
    assert outcome.record == do.record("k", now=5)


def test_the_returning_owner_may_withdraw_what_was_marked_uncertain(do: Do) -> None:
    owner = do(claim("k", now=0))
    assert do(suspect(owner, "swept", now=3)) is True
    assert do(withdraw(owner, now=4)) is True
    assert do(claim("k", body=b"another request", now=5)).granted


def test_what_was_withdrawn_is_open_at_once_by_the_stores_own_clock(do: Do) -> None:
    """A client that follows a redirect claims the key again within a millisecond."""
    owner = do(claim("k", now=None))
    assert do(withdraw(owner, now=None)) is True
    assert do(reap(now=None)) == 0
    following = do(claim("k", body=b"another request", now=None))
    assert following.granted
    assert record_of(following).attempt == 1


def test_a_late_withdrawal_does_not_touch_the_next_life(do: Do) -> None:
    """The withdrawn and the new record both have attempt 1. Only the token differs."""
    owner = do(claim("k", now=0))
    assert do(withdraw(owner, now=1)) is True
    following = do(claim("k", body=b"another request", now=2))
    assert following.granted
    for now in (1, 3):
        assert do(withdraw(owner, now=now)) is False
    assert do.record("k") == following.record
    assert do(complete(following, b"done", now=4)) is True
    before = do.record("k")
    assert do(withdraw(owner, now=5)) is False
    assert do(withdraw(following, now=5)) is False, "it is settled"
    assert do.record("k") == before


def test_a_withdrawal_on_a_later_attempt_is_a_release(do: Do) -> None:
    """An earlier attempt may have reached the endpoint, so fingerprint and run are kept."""
    first = record_of(do(claim("k", lease=5, on_lapse="rerun", now=0)))
    second = do(claim("k", now=6))
    assert do(withdraw(second, "not this time", now=7)) is True
    after = do.record("k")
    assert (after.state, after.note, after.expires) == (State.RELEASED, "not this time", first.retention)
    assert do(claim("k", body=b"another request", now=8)).granted is False
    third = record_of(do(claim("k", now=8)))
    assert (third.attempt, third.run) == (3, first.run)


def test_a_withdrawal_at_a_recovery_point_is_a_release(do: Do) -> None:
    owner = record_of(do(claim("k", now=0)))
    assert do(advance(owner, "charged", b"half", now=1)) is True
    assert do(withdraw(owner, now=2)) is True
    assert do.record("k").expires == FOREVER_MICROS
    assert do(claim("k", body=b"another request", now=3)).granted is False
    resumed = record_of(do(claim("k", now=3)))
    assert (resumed.attempt, resumed.point, resumed.run) == (2, "charged", owner.run)


def test_the_reaper_leaves_what_was_withdrawn_for_an_hour(do: Do) -> None:
    """A copy of the claim or of the withdrawal may arrive late, and must find the record."""
    owner = do(claim("k", now=0))
    assert do(withdraw(owner, now=4)) is True
    assert (do(stats(now=5)).released, do(stats(now=5)).expired) == (1, 0)
    assert do(reap(now=4 + 3600 - TICK)) == 0
    assert do(withdraw(owner, now=3000)) is True, "its own earlier success"
    assert do(stats(now=4 + 3600)).expired == 1
    assert do(reap(now=4 + 3600)) == 1
    assert do(lookup("k")).record is None


def test_what_was_withdrawn_is_not_listed_as_released(do: Do) -> None:
    assert do(withdraw(do(claim("withdrawn", now=0)), now=1)) is True
    released = record_of(do(claim("released", now=0)))
    assert do(release(released, now=1)) is True
    assert do.list_all(listing(state=State.RELEASED, now=2)).keys() == {released.id}
    assert len(do.list_all(listing(now=2))) == 2


# Resolve ------------------------------------------------------------------------------------------


def test_resolve_yes_stores_the_answer(do: Do) -> None:
    owner = record_of(do(claim("k", now=0)))
    assert do(suspect(owner, "unknown", now=1)) is True
    assert do(resolve(owner, b"it was paid", "asked the bank", now=9)) is True
    after = do.record("k")
    assert (after.state, after.answer, after.note) == (
        State.COMPLETED,
        answer(b"it was paid"),
        "asked the bank",
    )
    assert (after.completed, after.lease_until, after.attempt) == (9 * SECOND_MICROS, 9 * SECOND_MICROS, 1)
    op = claim("k", now=10)
    assert isinstance(judge(op, do(op)), Replay)


def test_resolve_no_lets_the_next_one_try(do: Do) -> None:
    owner = record_of(do(claim("k", now=0)))
    assert do(suspect(owner, "unknown", now=1)) is True
    assert do(resolve(owner, None, "the bank never saw it", now=9)) is True
    after = do.record("k")
    assert (after.state, after.answer, after.note) == (State.RELEASED, None, "the bank never saw it")
    second = do(claim("k", now=10))
    assert second.granted
    assert (record_of(second).attempt, record_of(second).run) == (2, owner.run)


@pytest.mark.parametrize("other", [b"another", None], ids=["other-answer", "no"])
def test_a_second_resolution_that_says_something_else_is_refused(do: Do, other: bytes | None) -> None:
    owner = do(claim("k", now=0))
    assert do(suspect(owner, now=1)) is True
    assert do(resolve(owner, b"paid", now=2)) is True
    before = do.record("k")
    assert do(resolve(owner, other, now=3)) is False
    assert do.record("k") == before


@pytest.mark.parametrize("happened", [True, False])
def test_what_lapsed_is_resolved_before_the_sweeper_comes(do: Do, happened: bool) -> None:
    """A person sees "uncertain" from the end of the lease on, and need not wait for the sweeper."""
    owner = do(claim("k", lease=10, now=0))
    op = resolve(owner, b"charged" if happened else None, "the provider's console", now=10)
    assert do(op) is True
    assert do(op) is True, "its own reply was lost"
    record = do.record("k", now=10)
    assert record.state is (State.COMPLETED if happened else State.RELEASED)
    assert record.note == "the provider's console"
    assert do(renew(owner, now=11)) is False, "the owner comes back too late"
    assert do(complete(owner, b"late", now=11)) is False
    assert do(suspect(owner, lapsed_only=True, now=11)) is False
    assert do.record("k", now=10) == record


def test_a_living_owner_is_not_resolved(do: Do) -> None:
    owner = do(claim("k", lease=10, now=0))
    for answer_body in (b"charged", None):
        assert do(resolve(owner, answer_body, now=9)) is False
    assert do.record("k") == record_of(owner)


@pytest.mark.parametrize("on_lapse", ["resume", "rerun"])
def test_what_may_be_taken_over_is_not_resolved(do: Do, on_lapse: OnLapse) -> None:
    """No decision is needed: the next claim takes over."""
    owner = do(claim("k", lease=10, on_lapse=on_lapse, now=0))
    for answer_body in (b"charged", None):
        assert do(resolve(owner, answer_body, now=11)) is False
    assert do.record("k") == record_of(owner)


def test_two_people_who_disagree_about_a_lapsed_one(do: Do) -> None:
    owner = do(claim("k", lease=10, now=0))
    assert do(resolve(owner, None, now=11)) is True
    assert do(resolve(owner, b"charged", now=12)) is False
    assert do.record("k").state is State.RELEASED


def test_a_resolution_after_the_owner_came_back_is_refused(do: Do) -> None:
    owner = do(claim("k", now=0))
    assert do(suspect(owner, now=1)) is True
    assert do(complete(owner, b"the truth", now=2)) is True
    assert do(resolve(owner, b"a guess", now=3)) is False
    assert do(resolve(owner, None, now=3)) is False
    assert do.record("k").answer == answer(b"the truth")


# Byte for byte ------------------------------------------------------------------------------------

BODIES = {
    "empty": b"",
    "one-nul": b"\x00",
    "all-bytes": bytes(range(256)),
    "not-utf-8": b"\xff\xfe\xc3\x28",
    "json": b'{"a": 1.0, "b": [ ] }\n',
    "crlf": b"a\r\n\r\nb\n",
    "quotes": b"'; DROP TABLE keys; -- \"\\",
    "one-mebibyte": bytes(range(256)) * 4096,
}

HEADERS: dict[str, tuple[tuple[str, str], ...]] = {
    "none": (),
    "duplicates": (("link", "</a>"), ("link", "</b>"), ("link", "</a>")),
    "order-and-case": (("B", "1"), ("a", "2"), ("A", "3")),
    "odd": (("x-empty", ""), ("x-space", " a  b "), ("x-latin", "caf\xe9"), ("x-quote", "a\"b'c\\d;e,f=g")),
    "long": (("x-long", "v" * 20_000),),
}


def assert_replayed(do: Do, name: str, stored: Answer) -> None:
    owner = do(claim(name, now=0))
    assert do(complete(owner, stored, now=1)) is True, name
    op = claim(name, now=2)
    outcome = judge(op, do(op))
    assert isinstance(outcome, Replay), name
    assert outcome.record == do.record(name, now=2), name
    assert do(complete(owner, stored, now=3)) is True, f"{name}: its own answer is recognised"
    assert outcome.record.answer == stored, name


def test_bodies_come_back_byte_for_byte(do: Do) -> None:
    for name, body in BODIES.items():
        assert_replayed(do, name, answer(body))


def test_headers_come_back_in_order(do: Do) -> None:
    for name, headers in HEADERS.items():
        assert_replayed(do, name, answer(b"x", headers=headers))


def test_every_status_comes_back(do: Do) -> None:
    for status in (0, 100, 200, 204, 304, 402, 503, 599, 999):
        assert_replayed(do, f"status {status}", answer(b"", status=status))


def test_a_tombstone_says_why(do: Do) -> None:
    for gone in get_args(Gone):
        assert_replayed(do, f"gone {gone!r}", answer(b"", gone=gone))


def test_input_and_progress_come_back_byte_for_byte(do: Do) -> None:
    for name, body in BODIES.items():
        owner = do(claim(name, input=body, lease=5, now=0))
        assert do(advance(owner, "p", body, on_lapse="resume", lease=5, now=1)) is True, name
        taken = record_of(do(claim(name, now=10)))
        assert (taken.input, taken.progress, taken.attempt) == (body, body, 2), name


def test_notes_and_points_come_back(do: Do) -> None:
    for number, text in enumerate(("", "plain", "ünïcödé 🙂", "'\"\\;--\n\r\t", "a" * 5000)):
        key = f"text {number}"
        owner = do(claim(key, now=0))
        assert do(advance(owner, text, b"", now=0)) is True
        assert do.record(key).point == text
        assert do(suspect(owner, text, now=1)) is True
        assert do.record(key).note == text
        assert do(release(owner, text, now=2)) is True
        assert do.record(key).note == text
