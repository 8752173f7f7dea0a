"""Structured logs: one line for each event, and no key in any of them (S28)."""

from __future__ import annotations

import logging

import pytest

from retrysafe import RetrySafe
from retrysafe.errors import FingerprintMismatch
from retrysafe.logs import log_event


def pay(order: str, cents: int) -> int:
    return cents


def test_each_event_is_a_line_with_its_parts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "retrysafe.events")
    safe = RetrySafe("memory://", on_event=log_event)
    charge = safe.once("charge:{order}")(pay)
    charge("canary-4127", 1)
    charge("canary-4127", 1)
    with pytest.raises(FingerprintMismatch):
        charge("canary-4127", 2)
    told = [record for record in caplog.records if record.name == "retrysafe.events"]
    assert [record.retrysafe_event for record in told] == ["new", "completed", "replayed", "mismatched"]  # type: ignore[attr-defined]
    assert [record.levelname for record in told] == ["INFO", "INFO", "INFO", "WARNING"]
    assert {record.retrysafe_target for record in told} == {f"{__name__}.pay"}  # type: ignore[attr-defined]
    assert len({record.retrysafe_id for record in told}) == 1  # type: ignore[attr-defined]
    assert "canary" not in str([vars(record) for record in told])


def test_nothing_is_made_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "retrysafe.events")
    RetrySafe("memory://", on_event=log_event).once("charge:{order}")(pay)("a", 1)
    assert not [record for record in caplog.records if record.name == "retrysafe.events"]
