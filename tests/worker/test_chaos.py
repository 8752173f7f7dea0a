"""Three workers killed and restarted at random: nothing lost, nothing doubled, nothing stuck (I14, I19, I20, I30)."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers.postgres import temporary_database

ROOT = Path(__file__).parents[2]
LEASE = 1.0


STORES = [pytest.param(store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres")]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the application and its store are. On PostgreSQL a database of their own."""
    if request.param == "sqlite":
        yield str(tmp_path / "app.db")
        return
    with temporary_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest.mark.parametrize("database", STORES, indirect=True)
@pytest.mark.parametrize(
    ("orders", "kills"),
    [(200, 25), pytest.param(10_000, 1500, marks=pytest.mark.campaign)],
)
def test_workers_killed_at_random(
    database: str, orders: int, kills: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = str(tmp_path / "provider.db")
    environment = os.environ | {"APP_DATABASE": database, "APP_PROVIDER": provider, "APP_LEASE": str(LEASE)}
    prepared = [sys.executable, "-c", "from tests.worker import app; app.prepare()"]
    subprocess.run(prepared, cwd=ROOT, env=environment, check=True)
    command = [sys.executable, "-m", "tests.worker.chaos", str(orders), str(kills), "7"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no worker met anything it could not handle"
    told = json.loads(done.stdout)
    assert (told["killed"], told["left"]) == (kills, 0)

    items = {f"item-{number}" for number in range(orders)}
    placed = rows(database, "SELECT item FROM orders WHERE charge IS NOT NULL")
    charged = rows(provider, "SELECT item FROM charges")
    delivered = rows(provider, "SELECT DISTINCT job, payload FROM deliveries")
    assert sorted(item for (item,) in placed) == sorted(items), "one order each"
    assert len(rows(database, "SELECT 1 FROM orders")) == orders, "none without a charge"
    assert sorted(item for (item,) in charged) == sorted(items), "one charge each"
    assert sorted(json.loads(payload)["item"] for _, payload in delivered) == sorted(items), "one receipt each"
    again = len(rows(provider, "SELECT 1 FROM deliveries")) - len(delivered)
    with capsys.disabled():
        print(
            f"\n{'PostgreSQL' if '://' in database else 'SQLite'}: "
            f"{orders} operations and {orders} jobs, {kills} workers killed in {told['seconds_with_faults']} s; "
            f"all done {told['seconds_after_faults']} s after the last; {again} receipts came twice, with their own id"
        )


def rows(path: str, statement: str) -> list[Any]:
    if "://" in path:
        with psycopg.connect(path) as connection:
            return connection.execute(statement).fetchall()
    with closing(sqlite3.connect(path, timeout=30)) as db:
        return db.execute(statement).fetchall()


@pytest.mark.store("sqlite")
def test_how_long_an_abandoned_operation_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its lease, then the next round: nothing else. (In production: lease 60 s + grace 5 min + tick 60 s.)

    That it waited for the lease is read off the record; how long that is after the death depends on the machine."""
    database, provider = str(tmp_path / "app.db"), str(tmp_path / "provider.db")
    environment = os.environ | {"APP_DATABASE": database, "APP_PROVIDER": provider, "APP_LEASE": str(LEASE)}
    code = """
import json, os, signal, sys, time
from tests.worker import app
from retrysafe.core.ops import List, Stats
from retrysafe.core.times import duration_to_micros
from retrysafe.worker.completer import Completer
app.prepare()
app.safe.close()
pid = os.fork()
if not pid:
    def dies(placed, *, key):
        os.kill(os.getpid(), signal.SIGKILL)
    object.__setattr__(app.order.steps["charge"], "function", dies)
    app.order.policy = app.order.policy.but(start="request")
    app.order("a", key="k")
os.waitpid(pid, 0)
died = time.monotonic()
(left,) = app.safe.execute(List()).records
while not Completer(app.safe, grace=0).run_once().finished:
    time.sleep(0.01)
late = (duration_to_micros(time.time()) - left.lease_until) / 1e6
told = {"seconds": time.monotonic() - died, "after_lease": late, "completed": app.safe.execute(Stats()).completed}
print(json.dumps({**told, "state": left.state.value}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["completed"], told["state"]) == (1, "claimed")
    assert told["after_lease"] >= 0, "it was taken from an owner that might have been alive"
    with capsys.disabled():
        print(
            f"\nan abandoned operation (lease {LEASE} s, grace 0) was finished {told['seconds']:.2f} s after its death"
        )
