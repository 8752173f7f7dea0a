"""A claim that waited for a row which somebody else had locked: by which time it is judged, from when its lease counts.

SQLite and DuckDB read the clock once they are let in (tests/stores/test_sqlite_clock.py, and below). A server's clock
stands still during a statement, also while it waits: there a lease counts from when the statement began. That is never
before the claim was sent, and an owner counts from before it sent it: so no owner relies on more than it was given.
And a lapse that is judged by an earlier time is judged more carefully.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymongo
import pymysql
import pytest
from psycopg import sql

from retrysafe.core.ops import ClaimReply
from retrysafe.core.times import duration_to_micros
from retrysafe.stores.duckdb import DuckdbStore
from retrysafe.stores.mongo import settings as mongo_settings
from retrysafe.stores.mysql import dialect as mysql_dialect
from retrysafe.stores.postgres import dialect as postgres_dialect
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, lookup, record_of
from tests.opening import COLOURS, open_migrated, store_url
from tests.waiting import until

SLACK = 60.0
ROUNDS = 20
"""The wait is one or two seconds and no longer: on a machine that stands still the lock may be given back too late."""
LEASE = 30

each_colour = pytest.mark.parametrize("colour", COLOURS)

Blocked = Callable[[], bool]
GiveBack = Callable[[], None]


@contextmanager
def on_postgres(url: str, record_id: bytes) -> Iterator[tuple[Blocked, GiveBack]]:
    at = postgres_dialect.parse_url(url)
    with psycopg.connect(at.conninfo) as holder, psycopg.connect(at.conninfo, autocommit=True) as admin:
        query = sql.SQL("SELECT 1 FROM {} WHERE id = %s FOR UPDATE").format(sql.Identifier(f"{at.names.bare}_keys"))
        holder.execute(query, [record_id])
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        yield lambda: admin.execute(waiting, [f"%{at.names.bare}%"]).fetchone() is not None, holder.rollback


@contextmanager
def on_mysql(url: str, record_id: bytes) -> Iterator[tuple[Blocked, GiveBack]]:
    at = mysql_dialect.parse_url(url)
    with closing(pymysql.connect(**at.connect)) as holder, closing(pymysql.connect(**at.connect)) as admin:
        holder.cursor().execute(f"SELECT 1 FROM `{at.names.bare}_keys` WHERE id = %s FOR UPDATE", [record_id])

        def blocked() -> bool:
            cursor = admin.cursor()
            # Not innodb_trx: it shows the statement, and fails on one with bytes in it.
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
            found = cursor.fetchone()
            return found is not None and int(found[1]) > 0

        yield blocked, holder.rollback


@contextmanager
def on_mongodb(url: str, record_id: bytes) -> Iterator[tuple[Blocked, GiveBack]]:
    at = mongo_settings.parse_url(url)
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(at.url)
    with client, client.start_session() as session, session.start_transaction():
        keys = client[at.database][at.names.keys]
        keys.update_one({"_id": record_id}, {"$set": {"note": "held"}}, session=session)

        def blocked() -> bool:
            found = client.admin.aggregate(
                [{"$currentOp": {}}, {"$match": {"command.findAndModify": at.names.keys}}, {"$limit": 1}]
            )
            return any(op.get("writeConflicts", 0) > 0 or op.get("waitingForLock") for op in found)

        yield blocked, session.abort_transaction


HOLDERS = {"postgres": on_postgres, "mysql": on_mysql, "mariadb": on_mysql, "mongodb": on_mongodb}


@pytest.fixture(params=sorted(HOLDERS))
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@each_colour
def test_no_owner_is_given_less_than_it_counts_on(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, colour: str
) -> None:
    url = store_url(request, tmp_path, store)
    with closing(open_migrated(url, colour)) as do:
        for key in map(str, range(ROUNDS)):
            asked, reply = waited(do, HOLDERS[store], url, key)
            if reply.granted:
                assert record_of(reply).attempt == 2
                # An owner counts from before it asked; what it was given reaches at least as far.
                assert record_of(reply).lease_until >= asked + duration_to_micros(LEASE)
                assert reply.now >= asked
                return
            assert reply.record is None
    raise AssertionError("no lock was given back in time")


def waited(do: Do, holding: Any, url: str, key: str) -> tuple[int, ClaimReply]:
    """The store's clock just before the claim was sent, and what a claim was told that waited."""
    op = claim(key, lease=0, on_lapse="rerun", now=None)
    assert do(op).granted
    with ThreadPoolExecutor(1) as pool, holding(url, op.id) as (blocked, give_back):
        asked = do(lookup("clock", now=None)).now
        told: Future[ClaimReply] = pool.submit(do, claim(key, lease=LEASE, on_lapse="rerun", now=None))
        until(lambda: blocked() or told.done(), SLACK, "the claim to wait for the row")
        give_back()
        return asked, told.result(SLACK)


@pytest.mark.store("duckdb")
def test_duckdb_looks_at_the_clock_each_time_it_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes nobody wait: the second is undone, and tried again by us, later. In these tests: ten seconds later."""
    began = 1_700_000_000_000_000
    clock = [began]
    with closing(DuckdbStore(tmp_path / "app.duckdb")) as store:
        store.migrate()
        monkeypatch.setattr(time, "time_ns", lambda: clock[0] * 1000)
        op = claim("k", lease=0, on_lapse="rerun", now=None)
        assert store.execute(op).granted
        with duckdb.connect(str(tmp_path / "app.duckdb")) as mine:
            mine.execute("BEGIN TRANSACTION")
            mine.execute("UPDATE retrysafe_keys SET note = 'held' WHERE id = ? RETURNING 1", [op.id]).fetchall()

            def pause(_low: float, _high: float) -> float:
                if clock[0] == began:
                    mine.execute("ROLLBACK")
                    clock[0] += duration_to_micros(10)
                return 0

            monkeypatch.setattr(random, "uniform", pause)
            taken = store.execute(claim("k", lease=2, on_lapse="rerun", now=None))
        assert (taken.granted, record_of(taken).attempt) == (True, 2)
        assert record_of(taken).lease_until == began + duration_to_micros(10) + duration_to_micros(2)
