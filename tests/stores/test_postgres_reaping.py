"""The reaper on PostgreSQL: a batch begins where the last one ended, and still leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from retrysafe.stores.base import Store
from retrysafe.stores.postgres.dialect import parse_url
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete, reap
from tests.opening import store_url
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

HOUR, LATE = 3600, 9e8
ROWS, BATCH = 5000, 100

CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
READ = (
    "SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = %(name)s)"
    " FROM pg_stat_user_tables WHERE relname = %(name)s"
)
"""Rows that were read from the table, and entries from its indexes."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path, "postgres")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def session(store: Store, url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection to the same table, which is not vacuumed meanwhile."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute("ALTER TABLE " + parse_url(url).names.keys + " SET (autovacuum_enabled = off)")
        yield connection


def settle(store: Store, name: str, *, now: float, namespace: str = "default") -> bytes:
    """A record that expires two hours after `now`."""
    claimed = store.execute(claim(name, retention=2 * HOUR, now=now, namespace=namespace))
    assert store.execute(complete(claimed, now=now))
    assert claimed.record is not None
    return claimed.record.id


def test_a_record_that_was_locked_is_deleted_later(store: Store, session: psycopg.Connection[Any], url: str) -> None:
    first = settle(store, "first", now=0)
    for number in range(4):
        settle(store, f"later{number}", now=1 + number)
    with session.transaction():
        session.execute(f"SELECT 1 FROM {parse_url(url).names.keys} WHERE id = %s FOR UPDATE", [first])
        assert store.execute(reap(2, now=LATE)) == 2
        assert store.execute(reap(2, now=LATE)) == 2
    assert store.execute(reap(2, now=LATE)) == 1


def test_a_record_that_expires_out_of_turn_is_deleted_in_the_same_round(store: Store) -> None:
    for number in range(4):
        settle(store, f"late{number}", now=1000)
    assert store.execute(reap(2, now=LATE)) == 2
    settle(store, "early", now=0)
    assert store.execute(reap(10, now=LATE)) == 3
    assert store.execute(reap(10, now=LATE)) == 0


def test_a_record_from_before_1970_is_deleted(store: Store) -> None:
    settle(store, "old", now=-9 * HOUR)
    assert store.execute(reap(10, now=-6 * HOUR)) == 1


def test_namespaces_do_not_push_each_other_onward(store: Store) -> None:
    for number in range(4):
        settle(store, f"ours{number}", now=number)
        settle(store, f"theirs{number}", now=100 + number, namespace="theirs")
    assert store.execute(reap(3, namespace="theirs", now=LATE)) == 3
    assert store.execute(reap(3, namespace="default", now=LATE)) == 3
    assert store.execute(reap(3, namespace="default", now=LATE)) == 1
    assert store.execute(reap(3, now=LATE)) == 1


def test_a_record_that_is_alive_again_stays(store: Store, session: psycopg.Connection[Any], url: str) -> None:
    """It was expired when the batch began, and is claimed anew before the batch has locked it."""
    settle(store, "again", now=0)
    settle(store, "gone", now=0)
    taken = store.execute(claim("again", retention=2 * HOUR, now=LATE))
    assert taken.granted
    assert store.execute(reap(10, now=LATE)) == 1
    assert session.execute(f"SELECT state FROM {parse_url(url).names.keys}").fetchall() == [("claimed",)]


def test_batches_do_not_read_again_what_is_deleted(session: psycopg.Connection[Any], url: str) -> None:
    """Deleted entries stay in the index until the next VACUUM. A batch that begins at the start reads them all."""
    keys, name = parse_url(url).names.keys, f"reaping-{uuid4().hex}"
    store = open_store(f"{url}&application_name={name}")
    for number in range(12):  # more than it takes for the statement's plan to be kept, on a table of a page
        settle(store, f"small{number}", now=number)
        assert store.execute(reap(1, now=LATE)) == 1
    settle(store, "many", now=0)
    session.execute(
        f"CREATE TEMP TABLE many AS SELECT k.*, n FROM {keys} AS k, generate_series(1, {ROWS}) AS n;"
        "UPDATE many SET id = sha256(n::text::bytea), expires = expires + n; ALTER TABLE many DROP COLUMN n;"
        f"INSERT INTO {keys} SELECT * FROM many"
    )
    with session.transaction():  # while it is open, nothing may be marked as dead
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute(f"SELECT count(*) FROM {keys}")
        for _ in range(ROWS // BATCH):
            assert store.execute(reap(BATCH, now=LATE)) == BATCH
    store.close()  # a connection that ends says what it has read
    until(lambda: session.execute(CONNECTED, [name]).fetchall() == [(0,)], 60, "the end of its connections")
    ((read,),) = session.execute(READ, {"name": keys.strip('"')}).fetchall()
    assert read < 5 * ROWS, f"{read} rows were read to delete {ROWS}"
