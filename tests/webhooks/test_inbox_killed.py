"""The inbox with real processes and `kill -9`: the receiving process, and `retrysafe worker`. Each event is handled
once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from retrysafe.engine.safe import RetrySafe
from tests.waiting import until

ROOT = Path(__file__).parents[2]
EVENTS = 20
DOOR = ["-m", "tests.webhooks.inbox_app", str(EVENTS)]
WORKER = ["-m", "retrysafe.cli.main", "worker", "tests.webhooks.inbox_app:safe", "--grace", "0"]
TIMEOUT_SECONDS = 120.0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE effects (id TEXT)")
    db.close()
    return path


def effects(database: Path) -> Counter[str]:
    db = sqlite3.connect(database)
    try:
        return Counter(row[0] for row in db.execute("SELECT id FROM effects"))
    finally:
        db.close()


def run(command: list[str], database: Path, kill: str = "", at: int = 0) -> subprocess.CompletedProcess[str]:
    where = {"INBOX_DATABASE": str(database), "INBOX_KILL": kill, "INBOX_KILL_AT": str(at)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | where,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.mark.timeout(600)
def test_each_event_is_handled_once_whoever_is_killed(database: Path) -> None:
    died = run(DOOR, database, "taken", 7)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert effects(database) == {}, "nothing is handled at the door"
    again = run(DOOR, database)
    assert again.returncode == 0, again.stderr
    for kill, at in (("handler", 4), ("done", 5)):
        died = run([*WORKER, "--tick", "0.05"], database, kill, at)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert set(effects(database).values()) == {1}
    assert len(effects(database)) < EVENTS

    def all_handled() -> bool:
        done = run([*WORKER, "--once"], database)
        assert done.returncode == 0, done.stderr
        return len(effects(database)) == EVENTS

    until(all_handled, TIMEOUT_SECONDS, "the worker to finish what the others have left")
    late = run(DOOR, database)
    assert late.returncode == 0, late.stderr
    assert run([*WORKER, "--once"], database).returncode == 0
    # The sender sent all of them once more, and nothing happened.
    assert effects(database) == {f"Ev{number}": 1 for number in range(EVENTS)}
