"""The installed program: worker, operations and reconcile, as a person or cron runs them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe.errors import UsageError
from tests.servers.ports import free_port

ROOT = Path(__file__).parents[2]
DEADLINE = 60


class App:
    """The application's files, and programs run against them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = str(folder / "app.db")
        self.environment = os.environ | {
            "APP_DATABASE": self.database,
            "APP_PROVIDER": str(folder / "provider.db"),
            "PYTHONPATH": str(ROOT),
        }
        self.python("from tests.worker import app; app.prepare()")

    def python(self, code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def place(self, *calls: str) -> None:
        """`place('"a", key="1"')`: orders that the worker shall run."""
        lines = "".join(f"app.order({call});" for call in calls)
        self.python(f"from tests.worker import app; {lines}")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "retrysafe.cli.main", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "retrysafe.cli.main", *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.database, timeout=30, isolation_level=None)) as db:
            return db.execute(statement).fetchall()


SAFE = "tests.worker.app:safe"


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path)


# worker ------------------------------------------------------------------------------------------


def test_once_is_one_round_with_counts(app: App) -> None:
    app.place('"a", key="1"', '"b", key="2"', '"broken", key="3"')
    done = app.run("worker", SAFE, "--once", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["completer"] == {"finished": 2, "later": 1, "unknown": 0, "dead": 0, "waiting": 0, "unreadable": 0}
    assert told["enqueuer"] == {"published": 2, "failed": 0, "dead": 0, "waiting": 0}
    assert (told["sweeper"], told["reaper"]) == (0, 0)
    assert app.sql("SELECT count(*) FROM orders WHERE charge IS NOT NULL") == [(2,)]


def test_it_works_until_it_is_told_to_stop_and_says_how_it_is(app: App) -> None:
    app.place('"a", key="1"')
    port = free_port()
    worker = app.start("worker", SAFE, "--tick", "30", "--health", f"127.0.0.1:{port}")
    try:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        assert "completer finished=1 later=0 unknown=0 dead=0" in line, line
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=DEADLINE) as answer:
            told = json.loads(answer.read())
            assert answer.status == 200
        assert told["healthy"] is True
        assert set(told["last"]) >= {"completer", "sweeper", "enqueuer", "reaper"}
        assert told["failing"] == []
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=DEADLINE)
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
    assert worker.returncode == 0
    assert "operations: order@1; topics: receipt" in said
    assert "SIGTERM: stopping after the current work" in said
    assert said.rstrip().endswith("stopped")


def test_a_store_that_is_away_is_reported_and_tried_again(app: App) -> None:
    app.sql("DROP TABLE retrysafe_keys")
    done = app.run("worker", SAFE, "--once", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["completer"] == {"error": "SchemaMissing"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tests.worker.app", "write MODULE:NAME"),
        ("no.such.module:safe", "no module named 'no'"),
        ("tests.worker.app:nothing", "has no 'nothing'; it has"),
        ("tests.worker.app:saef", "tests.worker.app has no 'saef'; did you mean tests.worker.app:safe?"),
        ("tests.worker.app:xyz", "tests.worker.app has no 'xyz'; it has safe, "),
        ("tests.worker.app:order", "is a Operation, not a RetrySafe; did you mean tests.worker.app:safe?"),
        ("tests.worker.unimportable:safe", "importing tests.worker.unimportable failed with ZeroDivisionError"),
    ],
)
def test_what_cannot_be_loaded_is_said_clearly(app: App, given: str, said: str) -> None:
    done = app.run("worker", given, "--once")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("wrong", [["--tick", "0"], ["--health", "8081"], ["--health", "x:99999"]])
def test_wrong_options_are_refused(app: App, wrong: list[str]) -> None:
    done = app.run("worker", SAFE, "--once", *wrong)
    assert done.returncode == 2
    assert wrong[1] in done.stderr


# operations --------------------------------------------------------------------------------------


def test_operations_are_described_and_drawn(app: App) -> None:
    described = app.run("operations", SAFE).stdout
    assert described.splitlines() == [
        "order@1",
        "  local    insert",
        "  foreign  charge  (undo, find)",
        "  foreign  print_label  (never repeated)",
        "  local    finish",
    ]
    drawn = app.run("operations", SAFE, "--diagram", "--name", "order").stdout
    assert drawn.splitlines()[:4] == [
        "flowchart TD",
        '    start(["order@1"])',
        '    s1["insert<br/>local: one transaction"]',
        "    start --> s1",
    ]
    assert '    s2 -. "undo" .-> u2["refund"]' in drawn
    assert '    s2 -. "ask" .-> f2(["find"])' in drawn
    assert "    class s3 once" in drawn
    assert "no such operation; there are order@1" in app.run("operations", SAFE, "--name", "x").stderr


def test_runs_are_listed_shown_and_resumed(app: App) -> None:
    app.place('"a", key="1"', '"broken", key="2"')
    app.run("worker", SAFE, "--once")
    listed = [json.loads(line) for line in app.run("operations", SAFE, "--list", "--json").stdout.splitlines()]
    assert [(run["key"], run["state"], run["point"]) for run in listed] == [
        ("2", "released", "charge"),
        ("1", "completed", "finish"),
    ]
    shown = app.run("operations", SAFE, "--show", listed[0]["id"][:12]).stdout
    assert "1. insert                   done" in shown
    assert "2. charge                   begun" in shown
    assert "the provider is down" in shown
    refused = app.run("operations", SAFE, "--resume", "2", "--because", "it is up again")
    assert refused.returncode == 1
    assert "stopped at 'charge'" in refused.stderr
    again = app.run("operations", SAFE, "--resume", "1", "--because", "to be sure")
    assert again.returncode == 1
    assert "is finished with 201: there is nothing to resume" in again.stderr
    assert "names 0 runs" in app.run("operations", SAFE, "--show", "nobody").stderr


# reconcile ---------------------------------------------------------------------------------------


def test_reconcile_tells_by_its_exit_code(app: App) -> None:
    app.place('"a", key="1"', '"b", key="2"')
    app.run("worker", SAFE, "--once")
    clean = app.run("reconcile", "tests.worker.app:charges")
    assert (clean.returncode, clean.stdout.splitlines()[0]) == (0, "2 match")
    app.sql("UPDATE orders SET item = 'ours only' WHERE item = 'a'")
    different = app.run("reconcile", "tests.worker.app:charges", "--json")
    assert different.returncode == 1
    told = json.loads(different.stdout)
    assert (told["clean"], told["matched"]) == (False, 1)
    assert (told["missing_there"], told["missing_here"]) == (["ours only"], ["a"])
    table = app.run("reconcile", "tests.worker.app:charges").stdout
    assert "1 ours, but not theirs\n  ours only" in table
    for target in ("tests.worker.app:broken", "tests.worker.app:not_one", "tests.worker.app:nothing"):
        failed = app.run("reconcile", target)
        assert failed.returncode == 2
        assert failed.stderr.startswith("retrysafe: could not reconcile: ")


def test_health_addresses() -> None:
    from retrysafe.worker.health import parse_address

    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    for wrong in ("127.0.0.1", ":80", "a:b"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            parse_address(wrong)


def test_a_store_out_of_reach_is_said_once_and_soon(tmp_path: Path) -> None:
    """Every service would wait for a connection as long as the first, and the driver's own lines say the same."""
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none?pool_timeout=1"
    (tmp_path / "shop.py").write_text(f"from retrysafe import RetrySafe\nsafe = RetrySafe({url!r})\n")
    done = subprocess.run(
        [sys.executable, "-m", "retrysafe.cli.main", "worker", "shop:safe", "--once", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("Connection refused") == 1, done.stderr
    assert {"at", "seconds", "completer"} == set(json.loads(done.stdout)), "the others were left out"
