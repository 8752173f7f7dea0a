"""When an operation is sent again, as a decision: no clock, no store."""

from __future__ import annotations

import pytest

from retrysafe.core.ops import ClaimReply, Lookup
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.resending import RESEND_DELAYS_SECONDS, RESEND_LIMIT_SECONDS, ResendState
from retrysafe.errors import CorruptRecord, StoreUnavailable, StoreUnclear
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim, complete, record_of
from retrysafe.testing.driver import Do

AWAY, SILENT = StoreUnavailable("away"), StoreUnclear("silent")
HIDDEN = ClaimReply(False, None, 0)


def quick(resending: ResendState, error: Exception, now: float = 0.0) -> None:
    """Use up the sendings that everybody has."""
    for pause in RESEND_DELAYS_SECONDS:
        assert resending.delay_after_error(error, now) == pause  # type: ignore[arg-type]


def test_nothing_was_done_is_an_answer() -> None:
    """I27: fail closed, and at once."""
    with pytest.raises(StoreUnavailable) as raised:
        ResendState(claim(), 0.0).delay_after_error(AWAY, 0.0)
    assert raised.value is AWAY


def test_after_an_unclear_sending_it_is_not() -> None:
    """The first sending may have been granted: to stop now would leave a key that lapses to uncertain."""
    resending = ResendState(claim(lease=20), 0.0)
    resending.delay_after_error(SILENT, 0.0)
    assert resending.delay_after_error(AWAY, 0.1) == RESEND_DELAYS_SECONDS[1]


def test_a_claim_is_sent_again_for_its_lease_and_then_the_truth_is_told() -> None:
    resending = ResendState(claim(lease=20), 100.0)
    quick(resending, SILENT, 100.0)
    assert resending.delay_after_error(AWAY, 118.9) == RESEND_DELAYS_SECONDS[-1]
    with pytest.raises(StoreUnclear, match=r"may have been carried out.*away") as raised:
        resending.delay_after_error(AWAY, 119.0)
    assert raised.value.__cause__ is AWAY


@pytest.mark.parametrize("lease", [60, 3600, float("inf")])
def test_and_never_for_longer_than_half_a_minute(lease: float) -> None:
    resending = ResendState(claim(lease=lease), 0.0)
    quick(resending, SILENT)
    assert resending.delay_after_error(SILENT, RESEND_LIMIT_SECONDS - 1.001) == RESEND_DELAYS_SECONDS[-1]
    with pytest.raises(StoreUnclear):
        resending.delay_after_error(SILENT, RESEND_LIMIT_SECONDS - 1.0)


def test_a_silent_store_holds_a_claim_for_its_lease_and_one_more_sending() -> None:
    """Each sending takes the store's whole timeout. Five of them held a request for 20 s under a lease of four."""
    resending = ResendState(claim(lease=4), 100.0)
    assert resending.delay_after_error(SILENT, 104.0) == RESEND_DELAYS_SECONDS[0], (
        "the next connection may be a good one"
    )
    with pytest.raises(StoreUnclear) as raised:
        resending.delay_after_error(SILENT, 108.02)
    assert raised.value is SILENT, "it may have been granted: it is released in the background"


def test_within_its_lease_a_claim_is_sent_as_often_as_it_takes() -> None:
    resending = ResendState(claim(lease=4), 0.0)
    now = 0.0
    for pause in (*RESEND_DELAYS_SECONDS, RESEND_DELAYS_SECONDS[-1]):
        assert resending.delay_after_error(SILENT, now) == pause
        now += 0.001 + pause
    with pytest.raises(StoreUnclear):
        resending.delay_after_error(SILENT, 3.0)


def test_a_claim_for_the_worker_has_no_lease_and_is_sent_a_few_times() -> None:
    resending = ResendState(claim(lease=0), 0.0)
    quick(resending, SILENT, 100.0)
    with pytest.raises(StoreUnclear):
        resending.delay_after_error(SILENT, 100.0)


def test_what_has_no_lease_is_sent_a_few_times() -> None:
    resending = ResendState(Lookup(b"i"), 0.0)
    quick(resending, SILENT)
    with pytest.raises(StoreUnclear) as raised:
        resending.delay_after_error(SILENT, 0.0)
    assert raised.value is SILENT


def test_an_owner_insists_although_nothing_was_done() -> None:
    held = record_of(Do.sync(MemoryStore())(claim()))
    resending = ResendState(complete(held), 0.0, until=10.0)
    quick(resending, AWAY)
    assert resending.delay_after_error(AWAY, 8.999) == RESEND_DELAYS_SECONDS[-1]
    with pytest.raises(StoreUnavailable) as raised:
        resending.delay_after_error(AWAY, 9.0)
    assert raised.value is AWAY, "nothing was done, and the error says so"


def test_a_lease_that_is_over_leaves_the_quick_ones() -> None:
    """Its fence may hold all the same."""
    held = record_of(Do.sync(MemoryStore())(claim()))
    resending = ResendState(complete(held), 100.0, until=50.0)
    quick(resending, AWAY, 100.0)
    with pytest.raises(StoreUnavailable):
        resending.delay_after_error(AWAY, 100.0)


def test_what_would_not_help_is_not_sent_again() -> None:
    damage = CorruptRecord(b"i" * 32, "cut off")
    with pytest.raises(CorruptRecord):
        ResendState(claim(), 0.0, until=100.0).delay_after_error(damage, 0.0)


def test_held_by_nobody_that_can_be_seen_is_no_answer_after_an_unclear_sending() -> None:
    """A slow commit: the resend meets its own row, which is not committed yet."""
    resending = ResendState(claim(lease=20), 0.0)
    assert resending.delay_after_reply(HIDDEN, 0.0) is None, "the first word is believed"
    resending.delay_after_error(SILENT, 0.0)
    assert resending.delay_after_reply(HIDDEN, 0.1) == RESEND_DELAYS_SECONDS[1]
    shown = HIDDEN._replace(record=record_of(Do.sync(MemoryStore())(claim())))
    assert resending.delay_after_reply(shown, 0.2) is None
    for _ in RESEND_DELAYS_SECONDS:
        resending.delay_after_reply(HIDDEN, 0.3)
    with pytest.raises(StoreUnclear, match="has not ended"):
        resending.delay_after_reply(HIDDEN, 20.0)


def test_a_lease_is_counted_in_seconds() -> None:
    assert claim(lease=20).lease == 20 * SECOND_MICROS
