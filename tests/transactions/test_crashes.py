"""SIGKILL at every statement boundary of a transaction: nothing happened, or all of it, and a retry ends well."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from typing import Any

import psycopg
import pytest

from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from tests.transactions.crashing import ANSWER, KEY, pay
from tests.transactions.rigs import World

TABLES = ("orders", "charges")

# Children of a server that has imported everything and opened nothing: a fresh process each, in milliseconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.transactions.crashing"])


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres")],
)
def shop(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(request.param)
    connection: Any = (
        sqlite3.connect(world.path) if request.param == "sqlite" else psycopg.connect(world.plain, autocommit=True)
    )
    for table in TABLES:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (value text)")
    connection.close()
    return world


def emptied(world: World) -> None:
    keys = '"retrysafe_keys"' if world.url.startswith("sqlite") else f"{world.url.rpartition('table=')[2]}_keys"
    connection: Any = (
        sqlite3.connect(world.path, isolation_level=None)
        if world.url.startswith("sqlite")
        else psycopg.connect(world.plain, autocommit=True)
    )
    for table in (*TABLES, keys):
        connection.execute(f"DELETE FROM {table}")
    connection.close()


def counts(world: World) -> tuple[int, ...]:
    return tuple(world.query(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES)


def killed(world: World, point: int) -> None:
    victim = FORKS.Process(target=pay, args=(world.url, point))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    victim.close()


def test_killed_at_every_point(shop: World) -> None:
    points = pay(shop.url, 0)
    assert counts(shop) == (1, 1)
    ends: dict[str, int] = {"nothing": 0, "all": 0}
    for point in range(1, points + 1):
        emptied(shop)
        killed(shop, point)
        record = shop.safe.execute(Lookup(KEY.id("default"))).record
        done = record is not None
        assert counts(shop) == ((1, 1) if done else (0, 0)), f"point {point} of {points} left a half"
        ends["all" if done else "nothing"] += 1
        retried(shop)
        record = shop.safe.execute(Lookup(KEY.id("default"))).record
        assert record is not None
        assert (record.state, record.answer) == (State.COMPLETED, ANSWER)
        assert counts(shop) == (1, 1)
    # After the commit there are two points: leaving the block, and the end of the program.
    assert ends == {"nothing": points - 2, "all": 2}
    assert points >= 10


def retried(shop: World) -> None:
    """The server may take a moment to notice that its client is gone; the lock is held until then."""
    wait_for_the_dead(shop)
    pay(shop.url, 0)


def wait_for_the_dead(shop: World) -> None:
    if shop.url.startswith("sqlite"):
        return
    with psycopg.connect(shop.plain, autocommit=True) as admin:
        while admin.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone():
            admin.execute("SELECT pg_sleep(0.01)")
