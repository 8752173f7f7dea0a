"""DuckDB: conflicts with transactions of the user's own, the file, the doctor, and transactions that are undone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from retrysafe import Policy, RetrySafe, open_async_store, open_store
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.errors import SchemaMissing, StoreOutage, StoreUnavailable, StoreURLError, SyncAsyncMismatch, UsageError
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.duckdb import DuckdbStore
from retrysafe.stores.duckdb.dialect import DIALECT, parse_url
from retrysafe.stores.duckdb.doctor import check_settings
from retrysafe.stores.sql.names import build_names
from retrysafe.testing.builders import claim, complete, lookup, reap, record_of
from retrysafe.transactions.base import dialect_for_vendor

pytestmark = pytest.mark.store("duckdb")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[DuckdbStore]:
    opened = DuckdbStore(path)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def mine(path: Path, store: DuckdbStore) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of the user's, in the same process."""
    with duckdb.connect(str(path)) as connection:
        yield connection


# Beside the user's own transactions ---------------------------------------------------------------


def hold(mine: duckdb.DuckDBPyConnection, record_id: bytes) -> None:
    mine.execute("BEGIN TRANSACTION")
    mine.execute("UPDATE retrysafe_keys SET note = 'held' WHERE id = ? RETURNING 1", [record_id]).fetchall()


def test_a_record_that_an_open_transaction_has_changed_is_busy(store: DuckdbStore, mine: Any) -> None:
    """DuckDB makes nobody wait: it undoes the second. A claim is refused in time, anything else is told why."""
    held = store.execute(claim("k", lease=30, on_lapse="rerun", now=0))
    hold(mine, record_of(held).id)
    busy = store.execute(claim("k", lease=30, on_lapse="rerun", now=31))
    assert (busy.granted, busy.record) == (False, None)
    with pytest.raises(StoreUnavailable, match="end that transaction, and send the operation again"):
        store.execute(complete(held, now=1))
    with pytest.raises(BatchRefused, match="one by one"):
        store.execute_many([complete(held, now=1), claim("other", now=1)])
    assert store.execute(lookup("other", now=1)).record is None, "of a batch all or nothing"
    mine.execute("ROLLBACK")
    assert store.execute(complete(held, now=1)) is True


def test_a_write_waits_out_a_transaction_that_ends(store: DuckdbStore, mine: Any) -> None:
    held = store.execute(claim("k", now=0))
    hold(mine, record_of(held).id)
    tried = threading.Event()
    waiting = threading.Timer(0, lambda: (tried.set(), mine.execute("ROLLBACK")))
    waiting.start()
    ended = []
    for _ in range(60):  # each try is a second: the transaction ends during one of them
        try:
            ended.append(store.execute(complete(held, now=1)))
            break
        except StoreOutage:
            continue
    waiting.join()
    assert tried.is_set()
    assert ended == [True]


def test_an_old_snapshot_does_not_keep_a_reaped_key(store: DuckdbStore, mine: Any) -> None:
    """A long analysis beside it: what it still sees does not stand in anybody's way."""
    held = store.execute(claim("k", retention=1, now=0))
    assert store.execute(complete(held, now=1)) is True
    mine.execute("BEGIN TRANSACTION")
    assert mine.execute("SELECT count(*) FROM retrysafe_keys").fetchall() == [(1,)]
    assert store.execute(reap(now=9e9)) == 1
    again = store.execute(claim("k", now=9e9))
    assert (again.granted, record_of(again).attempt) == (True, 1)
    assert mine.execute("SELECT state FROM retrysafe_keys").fetchall() == [("completed",)]
    mine.execute("ROLLBACK")


TEXTS = DIALECT.load(build_names())


@pytest.mark.parametrize("name", sorted(name for name, text in TEXTS.items() if text.startswith("UPDATE")))
def test_every_update_replaces_its_row_whole(name: str) -> None:
    """DuckDB 2.0 changes columns in place where nothing is returned, and then two transactions that change other
    columns of one row, or one that replaces it, do not see each other: one of them is lost without a word."""
    assert "RETURNING" in TEXTS[name]


@pytest.mark.parametrize(("first", "second"), [("", " RETURNING 1"), (" RETURNING 1", ""), (" RETURNING 1",) * 2])
def test_why_every_update_replaces_its_row_whole(path: Path, first: str, second: str) -> None:
    """What the rule above stands on. If the first two begin to conflict, it is no longer needed."""
    with duckdb.connect(str(path)) as mine:
        mine.execute("CREATE TABLE t (id integer PRIMARY KEY, a integer)")
        mine.execute("INSERT INTO t VALUES (1, 0)")
        other = mine.cursor()
        other.execute("BEGIN TRANSACTION")
        other.execute(f"UPDATE t SET a = a + 1 WHERE id = 1{first}").fetchall()
        if first == second:
            with pytest.raises(duckdb.TransactionException, match="Conflict on"):
                mine.execute(f"UPDATE t SET a = a + 1 WHERE id = 1{second}")
            other.execute("COMMIT")
        else:
            mine.execute(f"UPDATE t SET a = a + 1 WHERE id = 1{second}").fetchall()
            other.execute("COMMIT")
            assert mine.execute("SELECT a FROM t").fetchall() == [(1,)], "two were told of success, one is there"
        other.close()


# The file -----------------------------------------------------------------------------------------


def test_around_a_connection_of_yours(path: Path) -> None:
    """Also one with settings of its own, which DuckDB would not let us open again without them."""
    with duckdb.connect(str(path), config={"threads": 1}) as mine:
        store = DuckdbStore(mine)
        held = store.execute(claim("k", now=0))
        assert held.granted is True
        store.close()
        assert mine.execute("SELECT count(*) FROM retrysafe_keys").fetchall() == [(1,)], "it stays yours, and open"
        with pytest.raises(StoreUnavailable, match=r"settings of its own.*DuckdbStore\(connection\)"):
            open_store(f"duckdb:///{path}").execute(claim("k", now=0))


def test_a_connection_without_a_file_is_refused() -> None:
    with duckdb.connect(":memory:") as mine, pytest.raises(StoreUnavailable, match="has no file"):
        DuckdbStore(mine)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("duckdb:///", "names no file"),
        ("duckdb://host/x.duckdb", "names no file"),
        ("duckdb:///:memory:", "lost with its process"),
        ("duckdb:///a.duckdb?threads=1", "options DuckDB does not know here"),
    ],
)
def test_urls_that_say_nothing(url: str, why: str) -> None:
    with pytest.raises(StoreURLError, match=why):
        parse_url(url)


def test_a_folder_and_a_stranger(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        open_store(f"duckdb:///{tmp_path}").execute(claim("k", now=0))
    other = tmp_path / "notes.txt"
    other.write_text("Dear diary, " * 500)
    with pytest.raises(StoreUnavailable, match="is not a DuckDB database; point the URL at another file"):
        open_store(f"duckdb:///{other}").execute(claim("k", now=0))
    assert other.read_text().startswith("Dear diary"), "what is not ours is left alone"


def test_both_colours_have_one_file(path: Path) -> None:
    url = f"duckdb:///{path}"
    sync, asynchronous = open_store(url), open_async_store(url)

    async def take() -> list[bool]:
        replies = await asyncio.gather(*(asynchronous.execute(claim("k", now=0)) for _ in range(8)))
        await asynchronous.aclose()
        return [reply.granted for reply in replies]

    assert sorted(asyncio.run(take())) == [False] * 7 + [True]
    assert sync.execute(claim("k", now=0)).granted is False
    sync.close()


def test_tables_that_went_are_told(store: DuckdbStore, mine: Any) -> None:
    mine.execute("DROP TABLE retrysafe_keys")
    with pytest.raises(SchemaMissing, match=r"retrysafe migrate duckdb:///.*app\.duckdb"):
        store.execute(claim("k", now=0))


# The doctor ---------------------------------------------------------------------------------------

GOOD = {"version": "2.0.0", "fsync_mode": "STANDARD", "checkpoint_threshold": "16.0 MiB", "table": True}


@pytest.mark.parametrize(
    ("changed", "named", "fix"),
    [
        ({"fsync_mode": "NONE"}, "fsync_mode", "SET GLOBAL fsync_mode = 'STANDARD';"),
        ({"filesystem": "nfs4"}, "filesystem", "move the file to a local disk; for several machines use PostgreSQL"),
        ({"filesystem": "tmpfs"}, "filesystem", "move the file to a disk"),
        ({"table": False}, "table", "retrysafe migrate URL"),
        ({"version": "1.1.3"}, "version", "pip install -U duckdb"),
    ],
)
def test_a_setting_that_takes_the_promise_away(changed: dict[str, Any], named: str, fix: str) -> None:
    found = list(check_settings({**GOOD, "filesystem": "ext4", **changed}))
    assert [(finding.setting, finding.limit, finding.fix) for finding in found if not finding.fine] == [
        (named, "best-effort", fix)
    ]


def test_the_doctor_reads_the_database_that_is_open(path: Path, store: DuckdbStore, mine: Any) -> None:
    url = f"duckdb:///{path}"
    assert "fsync_mode" not in {finding.setting for finding in diagnose(url).findings if not finding.fine}
    mine.execute("SET GLOBAL fsync_mode = 'NONE'")
    assert diagnose(url).label == "best-effort"
    mine.execute("SET GLOBAL fsync_mode = 'STANDARD'")


def test_the_doctor_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is not there yet; make it: retrysafe migrate"):
        diagnose(f"duckdb:///{tmp_path / 'none.duckdb'}")
    assert list(tmp_path.iterdir()) == []


# Transactions -------------------------------------------------------------------------------------


def test_a_conflict_runs_the_body_again(path: Path) -> None:
    """Somebody else changes the same row of the user's own and commits first: this one is undone, and runs again."""
    with duckdb.connect(str(path)) as mine, RetrySafe(f"duckdb:///{path}") as safe:
        mine.execute("CREATE TABLE stock (item text PRIMARY KEY, n integer)")
        mine.execute("INSERT INTO stock VALUES ('pen', 10)")
        runs: list[int] = []

        @safe.transactional("order:{number}", tx=mine.cursor, policy=Policy(failures="release"))
        def order(tx: Any, number: int) -> int:
            runs.append(number)
            tx.execute("SELECT n FROM stock").fetchall()
            if len(runs) == 1:
                mine.execute("UPDATE stock SET n = n - 1 WHERE item = 'pen'")
            tx.execute("UPDATE stock SET n = n - 1 WHERE item = 'pen'")
            return number

        assert [order(7), order(7)] == [7, 7]
        assert runs == [7, 7], "undone once, run again once, then replayed"
        assert mine.execute("SELECT n FROM stock").fetchall() == [(8,)]
        kept = mine.execute("SELECT state, attempt FROM retrysafe_keys").fetchall()
        assert kept == [(State.COMPLETED.value, 1)]


def test_async_code_and_sqlalchemy_are_refused(path: Path) -> None:
    with duckdb.connect(str(path)) as mine, RetrySafe(f"duckdb:///{path}") as safe:

        async def order() -> None:
            async with safe.transaction(mine, key="k", scope="s"):
                raise AssertionError("never opened")

        with pytest.raises(SyncAsyncMismatch, match="is sync, but it is used in async code"):
            asyncio.run(order())
        assert safe.execute(Lookup(claim("k").id)).record is None
    with pytest.raises(UsageError, match="'duckdb' cannot carry a receipt yet"):
        dialect_for_vendor("duckdb")
