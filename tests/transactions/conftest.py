"""`rig`: every adapter × database. `world` is the database, `caller()` opens another user of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import psycopg
import pytest
from psycopg import sql

from retrysafe import RetrySafe
from tests.opening import patient, unique, with_option
from tests.transactions.rigs import RIGS, Caller, World, connect_pymysql, emptied_collections, mongo_client

EFFECTS = "CREATE TABLE IF NOT EXISTS effects (value text NOT NULL PRIMARY KEY)"


# Django is used without an application of its own, so its registry of applications is never ready.
NO_APPS = pytest.mark.filterwarnings("ignore:Accessing the database during app initialization")


def marks(name: str) -> list[pytest.MarkDecorator]:
    store = pytest.mark.store(name.partition("-")[0])
    return [store, NO_APPS] if name.endswith("django") else [store]


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in RIGS])
def rig(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def world(request: pytest.FixtureRequest, rig: str, tmp_path: Path) -> Iterator[World]:
    made = WORLDS[rig.partition("-")[0]](request, tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def caller(rig: str, world: World) -> Iterator[Callable[[], Caller]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(RIGS[rig](world))


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = postgres_world(request, tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def mysql(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = mysql_world(request, tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def mariadb(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = mariadb_world(request, tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def mongodb(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = mongodb_world(request, tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = sqlite_world(request, tmp_path)
    yield made
    made.safe.close()


def sqlite_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    url = f"sqlite:///{tmp_path / unique()}.db"
    safe = RetrySafe(url)
    safe.migrate()
    connection = sqlite3.connect(url.partition("///")[2])
    connection.execute(EFFECTS)
    connection.commit()
    connection.close()
    return World(url, safe)


def duckdb_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    url = f"duckdb:///{tmp_path / unique()}.duckdb"
    safe = RetrySafe(url)
    safe.migrate()
    with duckdb.connect(url.partition("///")[2]) as connection:
        connection.execute(EFFECTS)
    return World(url, safe)


def postgres_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """One set of tables per worker process, emptied for each test."""
    server: str = request.getfixturevalue("postgres_url")
    prefix = f"tx_{server.rpartition('/')[2][-12:]}"
    url = with_option(patient("postgres", server), "table", prefix)
    safe = RetrySafe(url)
    safe.migrate()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(EFFECTS)
        admin.execute("DELETE FROM effects")
        admin.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(f"{prefix}_keys")))
    return World(url, safe)


def mysql_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return family_world(request.getfixturevalue("mysql_url"))


def mariadb_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return family_world(request.getfixturevalue("mariadb_url"))


def family_world(server: str) -> World:
    """One set of tables per worker process, emptied for each test."""
    prefix = f"tx_{server.rpartition('/')[2][-12:]}"
    url = with_option(patient("mysql", server), "table", prefix)
    safe = RetrySafe(url)
    safe.migrate()
    world = World(url, safe)
    with connect_pymysql(world, autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute("SHOW TABLES LIKE 'effects'")
        if not cursor.fetchall():
            cursor.execute("CREATE TABLE effects (value varchar(255) COLLATE utf8mb4_bin NOT NULL PRIMARY KEY)")
        cursor.execute("DELETE FROM effects")
        cursor.execute(f"DELETE FROM {prefix}_keys")
        cursor.execute(f"DELETE FROM {prefix}_receipts")
    return world


def mongodb_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """One set of collections per worker process, emptied for each test."""
    url = with_option(request.getfixturevalue("mongodb_url"), "collection", "tx")
    safe = RetrySafe(url)
    safe.migrate()
    world = World(url, safe)
    emptied_collections(world, "effects", "tx_keys")
    with mongo_client(world) as client:  # a body that commits by hand leaves its key's lock; the other ids are text
        client.get_default_database()["tx_meta"].delete_many({"_id": {"$type": "binData"}})
    return world


WORLDS = {
    "sqlite": sqlite_world,
    "postgres": postgres_world,
    "mysql": mysql_world,
    "mariadb": mariadb_world,
    "duckdb": duckdb_world,
    "mongodb": mongodb_world,
}
