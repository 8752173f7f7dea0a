"""What only MySQL and MariaDB can show: a lock that belongs to the session, deadlocks, implicit commits, a cut at the
commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from retrysafe import Answer, Policy
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.errors import TransactionSplit
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.sql.receipts import lock_number
from retrysafe.transactions import flow, run
from tests.faults.mysql_proxy import MysqlProxy
from tests.transactions.conftest import marks
from tests.transactions.lost import LOOKS
from tests.transactions.rigs import MARIADB, MYSQL, SCOPE, Caller, World, connect_pymysql, mysql_write, task
from tests.waiting import until

RELEASE = Policy(failures="release")
ANSWER = Answer(201, {"ok": True})
SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]


@pytest.fixture(params=SERVERS)
def family(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(request.param)
    return world


def connecting(world: World) -> Callable[[], Any]:
    return lambda: connect_pymysql(world)


def is_free(world: World, key: str) -> bool:
    number = lock_number(parse_url(world.url).names, task(world.safe, key, 1, RELEASE).key.id("default"))
    return world.query(f"SELECT IS_FREE_LOCK(CONCAT('retrysafe:', CRC32(DATABASE()), ':', {number}))") == [(1,)]


# The lock -----------------------------------------------------------------------------------------

OURS = [
    pytest.param(
        database,
        name,
        marks=marks(f"{database}-{name}"),
        id=f"{database}-{name}",
    )
    for database, rigs in (("mysql", MYSQL), ("mariadb", MARIADB))
    for name in rigs
]


@pytest.mark.parametrize(("database", "name"), OURS)
def test_the_lock_is_held_while_it_runs_and_given_back(
    request: pytest.FixtureRequest, database: str, name: str
) -> None:
    """GET_LOCK does not end with the transaction, and a connection in a pool lives on: the lock must be free
    for other callers."""
    world: World = request.getfixturevalue(database)
    seen: list[bool] = []
    rig = {"mysql": MYSQL, "mariadb": MARIADB}[database][name]
    with rig(world) as user:
        look: Callable[[], object] = lambda: seen.append(is_free(world, "k"))  # noqa: E731
        user.run("k", ["a", look])
        assert seen == [False]
        assert is_free(world, "k")
        with pytest.raises(ZeroDivisionError):
            user.run("k2", ["b", lambda: 1 // 0])
        assert is_free(world, "k2")
        assert other(world, rig, "k2").effects() == ["a", "b"]


def other(world: World, rig: Any, key: str) -> World:
    """Somebody else can do it at once."""
    with rig(world) as user:
        caller: Caller = user
        assert not caller.run(key, ["b"]).replayed
    return world


def test_a_lock_of_the_users_own_is_left_alone(family: World) -> None:
    with connect_pymysql(family) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('mine', 0)")
        connection.commit()
        with family.safe.transaction(connection, key="k", scope=SCOPE) as tx:
            mysql_write(tx.handle, "a")
            tx.answer = ANSWER
        assert family.query("SELECT IS_FREE_LOCK('mine')") == [(0,)]


# Undone by the server -----------------------------------------------------------------------------


def test_a_deadlock_runs_the_body_again(family: World) -> None:
    with connect_pymysql(family, autocommit=True) as admin:
        mysql_write(admin, "x")
        mysql_write(admin, "y")
    first_inside, second_inside = threading.Event(), threading.Event()
    tries: list[str] = []

    def touch(tx: Any, value: str) -> None:
        with tx.cursor() as cursor:
            cursor.execute("SELECT value FROM effects WHERE value = %s FOR UPDATE", [value])

    def cross(name: str, mine: str, other: str, inside: threading.Event, wait_for: threading.Event) -> None:
        def body(tx: Any) -> Answer:
            tries.append(name)
            touch(tx, mine)
            inside.set()
            wait_for.wait(60)
            touch(tx, other)
            return ANSWER

        run(family.safe, task(family.safe, name, 1, RELEASE), connecting(family), body)

    rival = threading.Thread(target=cross, args=("b", "y", "x", second_inside, first_inside))
    rival.start()
    cross("a", "x", "y", first_inside, second_inside)
    rival.join(60)
    assert sorted(set(tries)) == ["a", "b"]
    assert len(tries) >= 3, "one of the two was undone, and ran again"


def test_a_statement_that_commits_by_itself_is_told(family: World) -> None:
    """DDL ends the transaction without being asked to."""

    def body(tx: Any) -> Answer:
        mysql_write(tx, "a")
        with tx.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE passing (value int)")  # this one does not commit
            cursor.execute("ANALYZE TABLE effects")  # this one does
        return ANSWER

    this = task(family.safe, "k", 1, RELEASE)
    with pytest.raises(TransactionSplit):
        run(family.safe, this, connecting(family), body)
    record = family.safe.execute(Lookup(this.key.id("default"))).record
    assert record is not None
    assert record.state is State.UNCERTAIN


# The commit, cut ----------------------------------------------------------------------------------


@pytest.fixture
def proxy(family: World) -> Iterator[MysqlProxy]:
    opened = MysqlProxy(family.plain)
    yield opened
    opened.close()


def through(proxy: MysqlProxy) -> Callable[[], Any]:
    at = parse_url(proxy.url).connect
    return lambda: pymysql.connect(**at)


def commit_of(family: World, proxy: MysqlProxy) -> int:
    """Which message the COMMIT is: the last query but one, before the lock is given back."""
    proxy.count()
    connection = through(proxy)()
    run(family.safe, task(family.safe, "count", 1, RELEASE), lambda: Kept(connection), written("count"))
    requests = [number for number, message in enumerate(proxy.seen, start=1) if message == ">Q"]
    connection.close()
    until(lambda: proxy.seen[-1] == ">", 60, "the client's goodbye, which would count as a message of the next one")
    return requests[-2]


class Kept:
    """A context manager that does not close what it gives."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> Any:
        return self._connection

    def __exit__(self, *details: object) -> None:
        """The connection belongs to the test."""


def written(value: str, runs: list[str] | None = None) -> Callable[[Any], Answer]:
    def body(tx: Any) -> Answer:
        if runs is not None:
            runs.append(value)
        mysql_write(tx, value)
        return ANSWER

    return body


@pytest.mark.parametrize(("side", "ran"), [("swallow", 1), ("before", 2)])
def test_a_commit_that_was_cut_is_found_out(
    family: World, proxy: MysqlProxy, side: Any, ran: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Carried out and its reply lost: done, once. Never arrived: undone, and the body runs again."""
    monkeypatch.setattr(flow, "RECOVERY_DELAYS_SECONDS", LOOKS)
    at = commit_of(family, proxy)
    runs: list[str] = []
    proxy.cut_at(at, side)
    ended = run(family.safe, task(family.safe, "k", 1, RELEASE), through(proxy), written("a", runs))
    assert proxy.was_cut()
    assert not ended.replayed
    assert len(runs) == ran
    assert family.effects() == ["a", "count"]


@pytest.mark.parametrize("side", ["before", "swallow"])
def test_cut_at_every_request(family: World, proxy: MysqlProxy, side: Any) -> None:
    """Whatever request is lost, the effect and the receipt are both there or both not, and a retry settles it."""
    proxy.count()
    run(family.safe, task(family.safe, "count", 1, RELEASE), through(proxy), written("count"))
    requests = [number for number, message in enumerate(proxy.seen, start=1) if message == ">Q"]
    for number in requests:
        key = f"{side}-{number}"
        this = task(family.safe, key, 1, RELEASE)
        proxy.cut_at(number, side)
        try:
            run(family.safe, this, through(proxy), written(key))
        except Exception:
            returned = False
        else:
            returned = True
        assert proxy.was_cut()
        record = family.safe.execute(Lookup(this.key.id("default"))).record
        assert (key in family.effects()) == (record is not None and record.state is State.COMPLETED)
        assert not returned or key in family.effects()
        proxy.count()
        patient = task(family.safe, key, 1, RELEASE.replace(busy="wait"))
        run(family.safe, patient, through(proxy), written(key))
        assert family.effects().count(key) == 1
