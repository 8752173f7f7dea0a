"""A foreign call begins only if its whole timeout fits into what is left of the lease (rule 14, I33)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.engine import aperform, heartbeat, perform
from retrysafe.engine.clock import clock
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.errors import LeaseLost, NotFinished
from retrysafe.operations import perform as calls
from tests.operations.world import World


def operation(w: World, between: Any, timeout: float = 10.0) -> Any:
    """One call, and something that happens just before it."""
    op = w.safe.operation("fits")

    @w.foreign(op, timeout=timeout)
    def call(*, key: str) -> str:
        lease = current_lease()
        assert lease is not None
        w.sent.append(key)
        assert lease.until - clock() > timeout - 1, "what is left of the lease is at least the call's timeout"
        return "x"

    @w.body(op)
    def body() -> Answer:
        lease = current_lease()
        assert lease is not None
        between(lease)
        yield call
        return Answer(200, {})

    return op


def test_the_lease_is_longer_than_the_longest_call(w: World) -> None:
    op = operation(w, lambda lease: None, timeout=500.0)
    assert op.lease > 500.0
    assert w.run(op(key="k")).status == 200


def test_a_lease_with_too_little_left_is_renewed_before_the_call(w: World) -> None:
    def nearly_over(lease: Lease) -> None:
        lease.until = clock() + 5.0

    assert w.run(operation(w, nearly_over)(key="k")).status == 200
    assert len(w.sent) == 1


def test_a_lease_that_somebody_has_taken_over_begins_no_call(w: World) -> None:
    """A process that was stopped between its claim and its first call woke after its successor, and charged (I24)."""

    def taken_over(lease: Lease) -> None:
        w.sql(f"UPDATE {w.keys} SET attempt = attempt + 1, token = ?", b"successor")
        lease.until = clock() - 1.0

    with pytest.raises(LeaseLost):
        w.run(operation(w, taken_over)(key="k"))
    assert w.sent == []


def test_a_renewal_that_takes_as_long_as_the_lease_begins_no_call(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to each renewal is late: what is left of the lease is less than the call may take."""
    op = operation(w, lambda lease: setattr(lease, "until", clock() + 1.0))
    slow = [0.0]

    def late(self: Lease, asked: float) -> None:
        slow[0] += 1
        self.until = asked + 2.0  # of all that was asked for, this much is left

    monkeypatch.setattr(Lease, "record_renewal", late)
    with pytest.raises(NotFinished, match="too slowly"):
        w.run(op(key="k"))
    assert (w.sent, slow[0] >= 1) == ([], True)


def test_without_a_lease_a_call_is_nobody_s_business() -> None:
    """Jobs are sent that way."""
    assert calls.begin_call(None, calls.CallFunction(lambda: "sent", math.inf)) == "sent"


def test_all_modules_count_by_one_clock() -> None:
    assert perform.clock is aperform.clock is heartbeat.clock is clock
