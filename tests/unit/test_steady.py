"""The campaign that looks for tests which fail by chance: it counts, goes on where it stopped, and ends its load."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools import steady

PLAN = steady.Plan(("tests/a.py",), load=2, runs=5, commit="abc", timeout=60)


def note(**changes: Any) -> dict[str, Any]:
    plain = {
        "tests": ["tests/a.py"],
        "load": 2,
        "commit": "abc",
        "ok": True,
        "seconds": 3.0,
        "failed": [],
        "output": "",
    }
    return {**plain, **changes}


def test_only_runs_of_the_same_thing_count() -> None:
    others = [note(load=8), note(commit="abc-dirty"), note(tests=["tests/b.py"]), {}]
    assert steady.count_remaining_runs(PLAN, others) == 5
    assert steady.count_remaining_runs(PLAN, [*others, note(), note(ok=False)]) == 3
    assert steady.count_remaining_runs(PLAN, [note()] * 9) == 0


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    assert steady.read_notes(file) == []
    file.write_text(json.dumps(note()) + "\n" + json.dumps(note())[:20])
    assert steady.read_notes(file) == [note()]


def test_what_is_told() -> None:
    failed = note(ok=False, seconds=9.0, failed=["tests/a.py::test_it"], output="unclosed transport")
    summary = steady.format_summary(PLAN, [note(), note(seconds=5.0), failed, note(load=8, ok=False)])
    assert summary.splitlines()[0] == "3 of 5 runs under a load of 2: 1 failed; 3 to 9 s, half of them within 5 s"
    assert summary.splitlines()[1:] == ["  tests/a.py::test_it: unclosed transport"]


def test_the_load_is_ended() -> None:
    with steady.run_load(2) as running:
        assert len(running) == 2
        for pid in running:
            os.kill(pid, 0)
    for pid in running:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_runs_side_by_side_are_load_to_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once with a load of two need no other; all of them are noted, and no more than were asked for."""
    together = threading.Barrier(3, timeout=60)
    loads: list[int] = []

    @contextmanager
    def run_load(number: int) -> Iterator[list[int]]:
        loads.append(number)
        yield []

    def run_tests(plan: steady.Plan) -> dict[str, Any]:
        together.wait()  # broken unless three are there at the same time
        return note()

    monkeypatch.setattr(steady, "run_load", run_load)
    monkeypatch.setattr(steady, "run_tests", run_tests)
    file = tmp_path / "notes"
    assert len(steady.run_campaign(PLAN._replace(runs=6), file, float("inf"), at_once=3)) == 6
    assert loads == [0]


@pytest.mark.campaign
def test_it_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run, then one more, then one that fails."""
    file = tmp_path / "notes"
    quick = ["tests/unit/test_errors.py", "--load", "1", "--notes", str(file)]
    assert steady.main([*quick, "--runs", "1"]) == 0
    assert [each["ok"] for each in steady.read_notes(file)] == [True]
    assert steady.main([*quick, "--runs", "2"]) == 0
    assert [each["ok"] for each in steady.read_notes(file)] == [True] * 2
    bad = tmp_path / "test_bad.py"
    bad.write_text("def test_it():\n    assert 1 == 2\n")
    assert steady.main([str(bad), "--load", "1", "--notes", str(file), "--runs", "1"]) == 1
    (failed,) = steady.read_notes(file)[-1]["failed"]
    assert failed.endswith("test_bad.py::test_it")
    assert "1 failed" in capsys.readouterr().out
