"""benchmarks/paired.py: the order of slices, and what a drift of the machine leaves."""

from __future__ import annotations

import pytest
from benchmarks.paired import compare_rounds, compare_starts, run_rounds

STATES = ("on", "off", "control")


def test_every_round_goes_there_and_back() -> None:
    asked: list[str] = []

    def measure(state: str) -> float:
        asked.append(state)
        return 1.0

    assert list(run_rounds(STATES, 3, measure)) == [{"on": 1.0, "off": 1.0, "control": 1.0}] * 3
    rounds = [asked[start : start + 6] for start in (0, 6, 12)]
    assert all(each == each[::-1] for each in rounds)
    assert [each[:3] for each in rounds] == [
        ["on", "off", "control"],
        ["off", "control", "on"],
        ["control", "on", "off"],
    ], "each state is first, second and at the turn equally often"


def test_a_machine_that_slows_down_steadily_moves_no_difference() -> None:
    costs, slices = {"on": 1.02, "off": 1.0, "control": 1.0}, iter(range(1000))
    rounds = list(run_rounds(STATES, 8, lambda state: costs[state] + 0.1 * next(slices)))
    base = [taken["off"] for taken in rounds]
    assert base[-1] > 4 * base[0], "it slowed down"
    assert compare_rounds(rounds, "control", "off").median == pytest.approx(0, abs=1e-9)
    assert all(taken["on"] - taken["off"] == pytest.approx(0.02) for taken in rounds)


def test_one_disturbed_round_does_not_move_the_median() -> None:
    rounds = [{"on": 102.0, "off": 100.0}] * 6 + [{"on": 300.0, "off": 100.0}]
    found = compare_rounds(rounds, "on", "off")
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)
    assert str(found) == "+2.00 % [+2.00 .. +2.00]"


def test_the_spread_is_the_middle_half_of_the_rounds() -> None:
    rounds = [{"on": 100.0 + each, "off": 100.0} for each in (-4, -2, 0, 2, 4)]
    assert compare_rounds(rounds, "on", "off") == (0, -2, 2)


def test_a_start_counts_once_however_many_rounds_it_has() -> None:
    """One start whose memory lies badly is not more often wrong for being asked more often."""
    good = [{"on": 101.0, "off": 100.0}] * 3
    bad = [{"on": 107.0, "off": 100.0}] * 20
    assert compare_starts([good, bad, good, good, good], "on", "off") == (1, 1, 1)
    assert compare_starts([good, bad], "on", "off") == (4, 2.5, 5.5)
