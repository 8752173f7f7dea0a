"""SIGKILL at every statement boundary of a transaction: nothing happened, or all of it, and a retry ends well."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from typing import Any

import psycopg
import pymysql
import pytest

from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.sql.receipts import lock_number
from tests.transactions.crashing import ANSWER, KEY, pay
from tests.transactions.rigs import World, connect_pymysql
from tests.waiting import until

TABLES = ("orders", "charges")

# Children of a server that has imported everything and opened nothing: a fresh process each, in milliseconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.transactions.crashing"])


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "mysql")],
)
def shop(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(request.param)
    told(world, *(f"CREATE TABLE {table} (value text)" for table in TABLES if not there(world, table)))
    return world


def there(world: World, table: str) -> bool:
    try:
        world.query(f"SELECT 1 FROM {table}")
    except (sqlite3.Error, psycopg.Error, pymysql.Error):
        return False
    return True


def told(world: World, *statements: str) -> None:
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
    told(world, *(f"DELETE FROM {table}" for table in (*TABLES, keys)))


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
    if shop.url.startswith(("mysql", "mariadb")):
        lock = lock_number(parse_url(shop.url).names, KEY.id("default"))
        free = f"SELECT IS_FREE_LOCK(CONCAT('retrysafe:', CRC32(DATABASE()), ':', {lock}))"
        until(lambda: shop.query(free) == [(1,)], 60, "the dead one's lock")
        return
    with psycopg.connect(shop.plain, autocommit=True) as admin:
        while admin.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone():
            admin.execute("SELECT pg_sleep(0.01)")
