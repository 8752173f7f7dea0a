"""What an operation costs, counted where it is paid: at the server."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.operations.world import Ordering, World


def commits(w: World, work: Any) -> int:
    """How many transactions that wrote something were committed."""
    return sqlite_commits(w, work) if w.store == "sqlite" else postgres_commits(w, work)


def postgres_commits(w: World, work: Any) -> int:
    """Every transaction that writes to one of the tables leaves its number, in the same transaction."""
    log = f"{w.orders}_log"
    w.sql(f"CREATE TABLE {log} (xid bigint)")
    w.sql(
        f"CREATE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN INSERT INTO {log} VALUES (txid_current()); RETURN NULL; END $$"
    )
    for table in (w.keys, w.orders, w.outbox):
        w.sql(
            f"CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {log}()"
        )
    work()
    ((counted,),) = w.sql(f"SELECT count(DISTINCT xid) FROM {log}")
    return int(counted)


def sqlite_commits(w: World, work: Any) -> int:
    """Every commit of a write adds a frame with the size of the database in its header to the WAL."""
    with closing(sqlite3.connect(w.database, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        work()
        with open(f"{w.database}-wal", "rb") as wal:
            header, frames = wal.read(32), wal.read()
    page = int.from_bytes(header[8:12], "big")
    size = 24 + page
    return sum(int.from_bytes(frames[at + 4 : at + 8], "big") != 0 for at in range(0, len(frames), size))


def test_the_order_operation_costs_three_commits(w: World) -> None:
    ordering = Ordering(w)
    ordering("warm")  # the same-database check, connections
    assert commits(w, ordering) == 3


def test_a_replay_costs_none(w: World) -> None:
    ordering = Ordering(w)
    ordering()
    assert commits(w, ordering) == 0


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_foreign_step_costs_the_commit_before_the_next(w: World, calls: int) -> None:
    op = w.safe.operation("calls")

    @w.foreign(op)
    def call(n: int, *, key: str) -> int:
        return n

    @w.body(op)
    def body() -> dict[str, int]:
        for n in range(calls):
            yield lambda n=n: call(n)
        return {}

    w.run(op(key="warm"))
    assert commits(w, lambda: w.run(op(key="k"))) == calls + 2
