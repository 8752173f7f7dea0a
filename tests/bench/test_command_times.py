"""benchmarks/command_times.py: every command is in it, each run acts, and the tables of the docs can be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.command_list import list_commands, operation_id, prepare
from benchmarks.command_runs import run_once
from benchmarks.command_times import FEW, compare, find_p99, list_grown, write_tables
from benchmarks.environment import ROOT

from retrysafe.cli.main import COMMANDS
from retrysafe.stores.registry import open_store

NOT_MEASURED = {
    "console": "its pages are measured by tests/console/test_million.py",
    "rollout": "it reads files of applications and no store",
    "reconcile": "it reads what the user's own object gives",
    "completion": "it prints a text",
    "demo": "it serves until it is stopped",
}


def test_every_command_is_measured_or_has_a_reason_why_not() -> None:
    measured = {command.words[0] for command in list_commands()} - {"--help"}
    assert measured | set(NOT_MEASURED) == set(COMMANDS)
    assert not measured & set(NOT_MEASURED)


def test_a_command_that_acts_has_a_target_of_its_own_for_each_run() -> None:
    for command in list_commands():
        first, second = (command.build_words("sqlite:///a.db", run) for run in (0, 1))
        one_target = command.acts and not {"--all", "reap", "trigger", "worker"} & set(command.words)
        assert not one_target or first != second, command.name
        assert ("--url" in first) != ("--app" in first or "--help" in first)
    resumed = next(command for command in list_commands() if command.words[1:2] == ("resume",))
    assert operation_id("resumed-7") in resumed.build_words("", 7)


def test_each_run_of_a_command_that_acts_changes_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, runs = f"sqlite:///{tmp_path / 'acts.db'}", 2
    store = open_store(url)
    store.migrate()
    store.close()
    prepare(url, runs)
    for command in list_commands():
        if command.acts:
            took = [run_once(url, command, run) for run in range(runs)]
            printed = capsys.readouterr().out
            assert all(each.seconds > 0 and each.kilobytes > 0 for each in took)
            if command.words[0] == "reap":
                assert printed.splitlines() == ["2 deleted"] * runs
            if command.submits:
                assert "finished=1 " in printed.splitlines()[-1]


def test_p99_of_a_hundred_is_the_second_slowest() -> None:
    assert find_p99([float(each) for each in range(100)][::-1]) == 98
    assert find_p99([1.0, 3.0, 2.0]) == 3


def build_found(many: float, megabytes: float) -> dict[str, Any]:
    taken = {"runs": 1, "p50_ms": 9.0, "p99_ms": 9.0, "cpu_p50_ms": 9.0, "cpu_p99_ms": 9.0, "server_cpu_ms": 0.0}
    rows = [
        {
            "command": command.name,
            "reads_every_record": command.reads_all,
            "few": taken | {"megabytes": 30.0},
            "many": taken | {"cpu_p50_ms": many, "megabytes": megabytes},
        }
        for command in list_commands()
    ]
    return {"store": "SQLite", "few": FEW, "many": 10, "rows": rows}


def test_what_grows_is_named() -> None:
    assert list_grown(build_found(9, 30)) == []
    by_index = [command for command in list_commands() if not command.reads_all]
    assert len(list_grown(build_found(19, 30))) == len(list_grown(build_found(9, 50))) == len(by_index)
    assert compare(build_found(19, 30)["rows"][0], "spent") == 2


@pytest.mark.timeout(300)
def test_a_short_run_writes_the_tables(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    words = ["SQLite", "--records", "2000", "--runs", "2", "--json", str(tmp_path / "found")]
    command = [sys.executable, "-m", "benchmarks.command_times", *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [row["command"] for row in found[0]["rows"]] == [command.name for command in list_commands()]
    assert all(row[size]["runs"] == 2 for row in found[0]["rows"] for size in ("few", "many"))
    lines = write_tables(found)
    assert sum(line.startswith("| SQLite |") for line in lines) == 2
