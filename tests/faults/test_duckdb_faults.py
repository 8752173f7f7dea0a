"""DuckDB when its process dies in the middle of a system call, or the disk fails there."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe.core.states import State
from retrysafe.testing.builders import claim, lookup
from tests.faults.sqlite_story import ANSWER, asked, done
from tests.faults.test_sqlite_faults import traced  # noqa: F401  (a fixture)
from tests.opening import open_migrated

pytestmark = [pytest.mark.store("duckdb"), pytest.mark.usefixtures("traced")]

ROOT = Path(__file__).parents[2]
DEADLINE = 120


def strace(path: Path, *more: str) -> list[str]:
    files = [part for end in ("", ".wal", ".wal.checkpoint", ".wal.recovery") for part in ("-P", f"{path}{end}")]
    return ["strace", "-f", "-qq", *files, *more]


def story(path: Path, token: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "tests.faults.duckdb_story", str(path), token]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)


def migrated(path: Path) -> Path:
    open_migrated(f"duckdb:///{path}", "sync").close()
    return path


def calls_of(path: Path, names: str) -> list[str]:
    """The system calls the story makes on its files, in their order."""
    log = path.with_suffix(".log")
    ended = story(path, secrets.token_hex(16), *strace(path, "-o", str(log), "-e", f"trace={names}"))
    assert ended.stdout.split() == ["claimed", "completed"], ended.stderr
    return re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)


def recovers(path: Path, token: str, told: list[str]) -> None:
    """What was acknowledged is there, what was not is found out, and the story ends as if nothing had been."""
    op = asked(token)
    do = open_migrated(f"duckdb:///{path}", "sync")
    try:
        found = do(lookup(op, now=None)).record
        if "claimed" in told:
            assert found is not None, "an acknowledged claim was lost"
            assert found.fence == (1, op.token)
        if "completed" in told:
            assert found is not None
            assert found.state is State.COMPLETED, "an acknowledged answer was lost"
        again = do(op)
        assert again.granted is (found is None or found.state is State.CLAIMED)
        assert again.record is not None
        assert again.record.fence == (1, op.token)
        assert do(done(op)) is True
        rival = do(claim(op.key, now=None))
        assert rival.granted is False
        assert rival.record is not None
        assert rival.record.answer == ANSWER
    finally:
        do.close()


def struck(path: Path, call: str, number: int, fault: str) -> list[str]:
    token = secrets.token_hex(16)
    inject = f"inject={call}:{fault}:when={number}"
    ended = story(path, token, *strace(path, "-o", os.devnull, "-e", f"trace={call}", "-e", inject))
    told = ended.stdout.split()
    if "SIGKILL" in fault:
        assert ended.returncode == -signal.SIGKILL, f"{inject} never struck: {ended.stderr}"
    recovers(path, token, told)
    return told


WRITES = "write,pwrite64,fdatasync,fsync,ftruncate,unlink,rename"


def test_a_commit_is_flushed_before_it_is_acknowledged(tmp_path: Path) -> None:
    """Two commits, two writes to the log, each flushed before the next thing happens; then the process ends."""
    calls = calls_of(migrated(tmp_path / "k.duckdb"), WRITES)
    logged = [place for place, call in enumerate(calls) if call == "write"]
    assert len(logged) >= 2
    assert {calls[place + 1] for place in logged} == {"fdatasync"}


def test_killed_around_its_flushes(tmp_path: Path) -> None:
    """The moment a commit becomes one. Every other moment is in the campaign."""
    calls = calls_of(migrated(tmp_path / "count.duckdb"), "fdatasync")
    told = [
        struck(migrated(tmp_path / f"{number}.duckdb"), "fdatasync", number, "signal=SIGKILL")
        for number in range(1, min(len(calls), 3) + 1)
    ]
    assert {tuple(each) for each in told} >= {(), ("claimed",)}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=ENOSPC", "error=EIO"])
def test_struck_at_every_write(tmp_path: Path, fault: str) -> None:
    calls = calls_of(migrated(tmp_path / "count.duckdb"), WRITES)
    told = [
        struck(migrated(tmp_path / f"{call}-{number}.duckdb"), call, number, fault)
        for call in sorted(set(calls))
        for number in range(1, calls.count(call) + 1)
    ]
    if "error" in fault:
        assert any("StoreUnclear" in each for each in told), "a failing disk was never told of"
