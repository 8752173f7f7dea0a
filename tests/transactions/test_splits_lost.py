"""A body that commits by statement and then loses its connection, or meets a deadlock of MySQL: the connection cannot
answer any more, and the database is asked another way whether the transaction was committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.errors import OutcomeUnknown, RolledBack, TransactionSplit
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.sql.receipts import lock_number
from retrysafe.transactions import run
from tests.transactions.conftest import marks
from tests.transactions.rigs import (
    COMMIT,
    MARIADB,
    MYSQL,
    MYSQL_DEADLOCK,
    MYSQL_LOCK_TIMEOUT,
    POSTGRES,
    RELEASE,
    RIGS,
    SCOPE,
    Caller,
    World,
    connect_pymysql,
    mysql_raw,
    mysql_write,
    task,
)

Open = Callable[[], Caller]
FAMILY = {
    f"{database}-{name}": rig
    for database, rigs in (("mysql", MYSQL), ("mariadb", MARIADB))
    for name, rig in rigs.items()
}
ON_SERVERS = [*(f"postgres-{name}" for name in POSTGRES), *FAMILY]


@pytest.fixture(autouse=True)
def all_rigs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every adapter of MySQL and MariaDB, those too that other tests leave out."""
    for name, rig in FAMILY.items():
        monkeypatch.setitem(RIGS, name, rig)


each_adapter = pytest.mark.parametrize(
    "rig", [pytest.param(name, marks=marks(name)) for name in ON_SERVERS], indirect=True
)
each_mysql = pytest.mark.parametrize("rig", [pytest.param(name, marks=marks(name)) for name in FAMILY], indirect=True)


class Killer:
    """Ends the server's side of the connection that holds the lock of key `k`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._found = 0

    def find(self) -> None:
        if self._world.url.startswith("postgresql"):
            holders = """SELECT pid FROM pg_locks WHERE locktype = 'advisory'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
            ((self._found,),) = self._world.query(holders)
        else:
            number = lock_number(parse_url(self._world.url).names, record_id(self._world))
            name = f"CONCAT('retrysafe:', CRC32(DATABASE()), ':', {number})"
            ((self._found,),) = self._world.query(f"SELECT IS_USED_LOCK({name})")
        assert self._found

    def kill(self) -> None:
        if self._world.url.startswith("postgresql"):
            assert self._world.query(f"SELECT pg_terminate_backend({self._found}, 60000)") == [(True,)]
        else:
            self._world.query(f"KILL {self._found}")


def record_id(world: World) -> bytes:
    return task(world.safe, "k", 1, RELEASE).key.id("default")


def state_of(world: World) -> State | None:
    record = world.safe.execute(Lookup(record_id(world))).record
    return None if record is None else record.state


@each_adapter
def test_a_connection_that_is_lost_after_a_commit_by_statement(world: World, caller: Open) -> None:
    killer = Killer(world)
    with pytest.raises(TransactionSplit):
        caller().run("k", ["a", killer.find, COMMIT, killer.kill, "b"])
    assert (world.effects(), state_of(world)) == (["a"], State.UNCERTAIN)
    with pytest.raises(OutcomeUnknown):
        caller().run("k", ["a2"])
    assert world.effects() == ["a"]


@each_adapter
def test_a_connection_that_is_lost_without_a_commit_is_no_split(world: World, caller: Open) -> None:
    killer = Killer(world)
    with pytest.raises(Exception) as caught:  # whatever the driver says
        caller().run("k", ["a", killer.find, killer.kill, "b"])
    assert not isinstance(caught.value, TransactionSplit)
    assert (world.effects(), state_of(world)) == ([], None)
    assert caller().run("k", ["c"]).replayed is False
    assert world.effects() == ["c"]


@each_mysql
@pytest.mark.parametrize("undone_by", [MYSQL_DEADLOCK, MYSQL_LOCK_TIMEOUT], ids=["deadlock", "lock-timeout"])
def test_a_deadlock_after_a_commit_does_not_run_the_body_again(world: World, caller: Open, undone_by: str) -> None:
    ran: list[int] = []
    with pytest.raises(TransactionSplit):
        caller().run("k", [lambda: ran.append(1), "a", COMMIT, undone_by])
    assert (len(ran), world.effects(), state_of(world)) == (1, ["a"], State.UNCERTAIN)
    with pytest.raises(OutcomeUnknown):
        caller().run("k", ["a2"])


@each_mysql
def test_a_deadlock_without_a_commit_is_undone(world: World, caller: Open) -> None:
    with pytest.raises(RolledBack):
        caller().block("k", ["a", MYSQL_DEADLOCK])
    assert world.effects() == []
    assert caller().run("k", ["a"]).replayed is False


@pytest.mark.parametrize("server", [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")])
def test_a_real_deadlock_after_a_commit(request: pytest.FixtureRequest, server: str) -> None:
    """The server rolls the whole transaction back, and every savepoint with it."""
    world: World = request.getfixturevalue(server)
    with connect_pymysql(world, autocommit=True) as admin:
        for value in ("x", "y"):
            mysql_write(admin, value)
    ours, theirs = threading.Event(), threading.Event()

    def lock(connection: Any, value: str) -> None:
        mysql_raw(connection, f"SELECT value FROM effects WHERE value = '{value}' FOR UPDATE")

    def rival() -> None:
        with connect_pymysql(world) as connection:
            for number in range(50):  # the server ends whichever has written less
                mysql_write(connection, f"rival-{number}")
            lock(connection, "y")
            theirs.set()
            ours.wait(60)
            lock(connection, "x")
            connection.rollback()

    ran: list[int] = []

    def body(connection: Any) -> Answer:
        ran.append(1)
        mysql_write(connection, "a")
        mysql_raw(connection, "COMMIT")
        mysql_raw(connection, "START TRANSACTION")
        lock(connection, "x")
        ours.set()
        theirs.wait(60)
        lock(connection, "y")
        return Answer(201, {})

    thread = threading.Thread(target=rival)
    thread.start()
    with pytest.raises(TransactionSplit):
        run(world.safe, task(world.safe, "k", 1, RELEASE), lambda: connect_pymysql(world), body)
    thread.join(60)
    assert (len(ran), world.effects(), state_of(world)) == (1, ["a", "x", "y"], State.UNCERTAIN)


each_server = pytest.mark.parametrize(
    "server", [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]
)


@each_server
def test_what_a_process_that_died_had_committed_is_found_by_the_next(
    request: pytest.FixtureRequest, server: str
) -> None:
    """MySQL's marker row is named after the key, so the next process finds it."""
    world: World = request.getfixturevalue(server)
    this = task(world.safe, "k", 1, RELEASE)
    with connect_pymysql(world) as connection:
        block = world.safe.transaction(connection, key="k", scope=SCOPE, request=1, policy=RELEASE)
        handle = block.__enter__().handle
        mysql_write(handle, "a")
        mysql_raw(handle, "COMMIT")
        connection._force_close()  # as if the process were gone; the block is never left
        block._staging.close()  # what it keeps in this thread's context would be gone, too
    with pytest.raises(TransactionSplit):
        run(world.safe, this, lambda: connect_pymysql(world), lambda tx: pytest.fail("ran again"))
    assert (world.effects(), state_of(world)) == (["a"], State.UNCERTAIN)
    world.safe.resolve(this.key, happened=False, because="looked, and deleted the row")
    done = run(world.safe, this, lambda: connect_pymysql(world), lambda tx: Answer(201, {}))
    assert not done.replayed, "a person has decided: the marker is gone, and the body may run"


@each_server
@pytest.mark.parametrize("ending", ["lost", "deadlock", "rolled-back-before", "lost-without-commit"])
def test_a_local_step(request: pytest.FixtureRequest, server: str, ending: str) -> None:
    world: World = request.getfixturevalue(server)
    ran: list[int] = []
    with RetrySafe(world.url, tx=lambda: connect_pymysql(world)) as safe:
        op = safe.operation("split")

        @op.local
        def splits(tx: Any) -> Answer:
            ran.append(1)
            if ending == "rolled-back-before":
                mysql_raw(tx, "ROLLBACK")
            mysql_write(tx, "a")
            if ending != "lost-without-commit":
                mysql_raw(tx, "COMMIT")
            if ending in ("deadlock", "rolled-back-before"):
                mysql_raw(tx, MYSQL_DEADLOCK)
            elif len(ran) == 1:
                world.query(f"KILL {tx.thread_id()}")
                mysql_raw(tx, "SELECT 1")
            return Answer(201, {})

        @op.body
        def body() -> Answer:
            return splits()

        if ending == "lost-without-commit":
            assert op(key="k").status == 201
            assert (len(ran), world.effects()) == (2, ["a"])
            assert world.query(f"SELECT 1 FROM {parse_url(world.url).names.bare}_receipts WHERE step = 'began'") == []
        else:
            for _ in range(2):
                with pytest.raises(OutcomeUnknown):
                    op(key="k")
            assert (len(ran), world.effects()) == (1, ["a"])


@pytest.mark.store("duckdb")
def test_a_conflict_on_duckdb_after_a_commit_does_not_run_the_body_again(tmp_path: Path) -> None:
    """DuckDB refuses the second writer of a row at once, and everything after that until the rollback."""
    path = str(tmp_path / "a.duckdb")
    ran: list[int] = []
    with RetrySafe(f"duckdb:///{path}") as safe, duckdb.connect(path) as connection:
        safe.migrate()
        connection.execute("CREATE TABLE effects (value text)")
        connection.execute("CREATE TABLE counters (n int)")
        connection.execute("INSERT INTO counters VALUES (0)")

        def body(tx: Any) -> Answer:
            ran.append(1)
            tx.execute("INSERT INTO effects VALUES ('a')")
            for statement in ("COMMIT", "BEGIN", "SELECT n FROM counters"):
                tx.execute(statement)
            connection.execute("UPDATE counters SET n = n + 1")
            tx.execute("UPDATE counters SET n = n + 1")
            return Answer(201, {})

        with pytest.raises(TransactionSplit):
            run(safe, task(safe, "k", 1, RELEASE), connection.cursor, body)
        assert (len(ran), connection.execute("SELECT value FROM effects").fetchall()) == (1, [("a",)])
