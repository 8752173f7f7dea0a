"""What CI makes of the violations of fresh seeds."""

from __future__ import annotations

import pytest

from retrysafe.testing.simulation.campaign import Tally
from tests.simulation.campaigns import list_new_findings
from tests.simulation.kept import OPEN_FINDINGS


def test_open_findings_are_printed_and_others_fail(capsys: pytest.CaptureFixture[str]) -> None:
    (rule, *_) = OPEN_FINDINGS
    tally = Tally(failing={7: f"{rule}: of key-p1", 8: "one effect: p1 was charged 2 times"})
    assert list_new_findings(tally) == ["one effect: p1 was charged 2 times"]
    assert f"OPEN: seed 7 breaks '{rule}'" in capsys.readouterr().out
