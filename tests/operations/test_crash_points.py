"""The order operation killed with SIGKILL at every statement and between all steps; once, and again while it recovers.

Afterwards the client's retry, or the worker, continues: one order, one charge, one receipt, one stored
answer, and the first answer any client saw is the one that is replayed.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.jobs import ListJobs
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from tests.opening import with_option
from tests.operations.crashing import PROVIDER_SCHEMA
from tests.operations.world import World, make_world

STORES = [pytest.param(store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres")]

SLACK = 4
"""Two runs may differ by a statement or two: a busy database needs one more."""


class Nursery:
    """Forks children for commands, and knows what must be true of each key afterwards."""

    def __init__(self, w: World, folder: Path) -> None:
        self.w = w
        # With two connections, the number of statements varies: each new one is checked when it is first taken.
        self.url = w.url if w.store == "sqlite" else with_option(w.url, "pool", "1")
        self.provider = str(folder / "provider.db")
        with closing(sqlite3.connect(self.provider)) as db:
            db.executescript("PRAGMA journal_mode = WAL;" + PROVIDER_SCHEMA)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.operations.crashing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen: dict[str, Any] = {}
        self.children = 0

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(30)

    def run(self, *modes: str, key: str, kill: int = 0) -> dict[str, Any]:
        """One child, which is killed in its last mode. Before each of them time passes: all leases have lapsed."""
        self.children += 1
        command = {
            "store": self.w.store,
            "url": self.url,
            "database": self.w.database,
            "keys": self.w.keys,
            "outbox": self.w.outbox,
            "orders": self.w.orders,
            "provider": self.provider,
            "modes": modes,
            "key": key,
            "kill": kill,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "error" not in told, told["error"]
        for answer in told.get("answers", ()):
            assert self.seen.setdefault(key, answer) == answer, "everybody sees the first answer"
        return told

    def recover(self, how: str, key: str) -> None:
        """Faults have stopped: a client's retry, or the worker's rounds, and all is well; a client asks once more."""
        if how == "worker" and self.record(key) is None:
            assert self.w.sql(f"SELECT * FROM {self.w.orders} WHERE item = ?", key) == []
            how = "client"  # it was killed before its claim was committed: only the client knows of it
        self.run(how, "worker", "client", key=key)
        self.check(key)

    def record(self, key: str) -> Record | None:
        return self.w.safe.execute(Lookup(record_id("operation", "default", "create_order", key))).record

    def check(self, key: str) -> None:
        w = self.w
        orders = w.sql(f"SELECT id FROM {w.orders} WHERE item = ?", key)
        assert len(orders) == 1, f"{key}: {len(orders)} orders"
        with closing(sqlite3.connect(self.provider)) as db:
            charges = db.execute("SELECT id FROM charges WHERE item = ?", (key,)).fetchall()
            keys = db.execute("SELECT DISTINCT key FROM requests WHERE item = ?", (key,)).fetchall()
            payload = json.dumps({"item": key, "order": orders[0][0]}, separators=(",", ":"))
            jobs = db.execute("SELECT DISTINCT job FROM deliveries WHERE payload = ?", (payload,)).fetchall()
            of_item = f'%"{key}"%'
            delivered = db.execute("SELECT count(DISTINCT job) FROM deliveries WHERE payload LIKE ?", (of_item,))
            assert delivered.fetchone() == (1,), f"{key}: other receipts were delivered"
        assert (len(charges), len(keys), len(jobs)) == (1, 1, 1), f"{key}: {charges} {keys} {jobs}"
        record = self.record(key)
        assert record is not None
        assert record.state is State.COMPLETED
        assert record.answer is not None
        expected = {"order": orders[0][0], "charge": f"ch_{charges[0][0]}"}
        assert record.answer.json() == expected
        assert self.seen.setdefault(key, expected) == expected
        assert w.safe.execute(ListJobs()) == (), f"{key}: a job is left in the outbox"


@pytest.fixture(params=STORES)
def nursery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nursery]:
    world = make_world(request, tmp_path, request.param, "sync")
    made = Nursery(world, tmp_path)
    yield made
    made.close()
    world.close()


def boundaries(nursery: Nursery) -> tuple[int, int]:
    """How many there are in a client's run, and in the worker's round that publishes its job."""
    client = nursery.run("client", key="count")["passed"]
    nursery.run("worker", key="count")
    worker = nursery.run("client", "worker", key="other")["passed"]
    nursery.check("count")
    assert client > 30
    assert worker > 8
    return client, worker


@pytest.mark.parametrize("how", ["client", "worker"])
def test_killed_at_every_boundary(nursery: Nursery, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = boundaries(nursery)
    killed = killed_at_each(nursery, "client", how=how)
    assert killed > client - SLACK
    report(nursery, f"all {killed} boundaries of a client's run, recovered by the {how}", capsys)


def test_the_worker_killed_at_every_boundary(nursery: Nursery, capsys: pytest.CaptureFixture[str]) -> None:
    """While it publishes: at least once, with one id."""
    _, worker = boundaries(nursery)
    killed = killed_at_each(nursery, "client", "worker", how="worker")
    assert killed > worker - SLACK
    report(nursery, f"all {killed} boundaries of the worker's round", capsys)


@pytest.mark.parametrize("how", ["client", "worker"])
def test_killed_again_while_it_recovers(nursery: Nursery, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs, on a diagonal lattice: first points all over the run, second points all over the recovery."""
    client, _ = boundaries(nursery)
    firsts = range(1, client + 1, 5)
    for first in firsts:
        killed_twice(nursery, how, first, 1 + (first * 7) % client)
    report(nursery, f"{len(firsts)} pairs, recovered by the {how}", capsys)


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["client", "worker"])
def test_killed_at_every_pair(nursery: Nursery, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every second point there is: the recovery after an early death is long, after a late one short."""
    client, _ = boundaries(nursery)
    pairs = 0
    for first in range(1, client + 1):
        second = 1
        while killed_twice(nursery, how, first, second):
            second += 1
            assert second <= 3 * client, f"the recovery from {first} has no end"
        pairs += second - 1
    assert pairs > client
    report(nursery, f"all {pairs} pairs of {client} first points, recovered by the {how}", capsys)


def killed_at_each(nursery: Nursery, *modes: str, how: str) -> int:
    """At its first boundary, its second and so on, until a run has no more of them; how many there were."""
    point = 1
    while nursery.run(*modes, key=f"k{point}", kill=point)["killed"]:
        nursery.recover(how, f"k{point}")
        point += 1
    return point - 1


def killed_twice(nursery: Nursery, how: str, first: int, second: int) -> bool:
    """Whether there was a second death: the recovery may have been over before."""
    key = f"p{first}x{second}{how}"
    if not nursery.run("client", key=key, kill=first)["killed"]:
        nursery.recover(how, key)
        return False
    again: bool = nursery.run(how, key=key, kill=second)["killed"]
    nursery.recover(how, key)
    return again


def report(nursery: Nursery, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{nursery.w.store}: {what}: {nursery.children} processes, nothing lost, nothing doubled")
