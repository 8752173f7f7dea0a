"""SIGKILL at every statement boundary of a transaction: nothing happened, or all of it, and a retry ends well."""

from __future__ import annotations

import signal
import sqlite3
from itertools import count
from typing import Any

import psycopg
import pymysql
import pytest

from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from tests.forks import FORKS
from tests.transactions.crashing import ANSWER, KEY, pay
from tests.transactions.lost import wait_for_the_dead
from tests.transactions.rigs import World, connect_pymysql

TABLES = ("orders", "charges")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "mysql")],
)
def shop(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(request.param)
    run_statements(world, *(f"CREATE TABLE {table} (value text)" for table in TABLES if not there(world, table)))
    return world


def there(world: World, table: str) -> bool:
    try:
        world.query(f"SELECT 1 FROM {table}")
    except (sqlite3.Error, psycopg.Error, pymysql.Error):
        return False
    return True


def run_statements(world: World, *statements: str) -> None:
    if world.url.startswith(("mysql", "mariadb")):
        with connect_pymysql(world, autocommit=True) as admin, admin.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        return
    connection: Any = (
        sqlite3.connect(world.path, isolation_level=None)
        if world.url.startswith("sqlite")
        else psycopg.connect(world.plain, autocommit=True)
    )
    for statement in statements:
        connection.execute(statement)
    connection.close()


def emptied(world: World) -> None:
    keys = '"retrysafe_keys"' if world.url.startswith("sqlite") else f"{world.url.rpartition('table=')[2]}_keys"
    run_statements(world, *(f"DELETE FROM {table}" for table in (*TABLES, keys)))


def counts(world: World) -> tuple[int, ...]:
    return tuple(world.query(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES)


def killed(world: World, point: int) -> bool:
    """Whether it died there; else it came to its end before."""
    victim = FORKS.Process(target=pay, args=(world.url, point))
    victim.start()
    victim.join(120)
    assert victim.exitcode in (-signal.SIGKILL, 0)
    died = victim.exitcode != 0
    victim.close()
    return died


def test_killed_at_every_point(shop: World) -> None:
    pay(shop.url, 0)
    assert counts(shop) == (1, 1)
    ends: dict[str, int] = {"nothing": 0, "all": 0}
    emptied(shop)
    for point in count(1):
        if not killed(shop, point):
            break
        record = shop.safe.execute(Lookup(KEY.id("default"))).record
        done = record is not None
        assert counts(shop) == ((1, 1) if done else (0, 0)), f"point {point} left a half"
        ends["all" if done else "nothing"] += 1
        retried(shop)
        record = shop.safe.execute(Lookup(KEY.id("default"))).record
        assert record is not None
        assert (record.state, record.answer) == (State.COMPLETED, ANSWER)
        assert counts(shop) == (1, 1)
        emptied(shop)
    # After the commit there are two points: leaving the block, and the end of the program.
    assert ends["all"] == 2
    assert ends["nothing"] >= 8


def retried(shop: World) -> None:
    """The server may take a moment to notice that its client is gone; the lock is held until then."""
    wait_for_the_dead(shop)
    pay(shop.url, 0)
