"""Work that the database rolled back because of other transactions runs again, whole, with the same key, wherever the
failure came up."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from retrysafe import Policy
from retrysafe.transactions import find_source
from tests.transactions.conftest import postgres_world, sqlite_world
from tests.transactions.rigs import World
from tests.waiting import until
from tests.web.frameworks.calling import is_problem, is_replay
from tests.web.transactions.crashing import Conflict
from tests.web.transactions.django_shops import EVERY
from tests.web.transactions.shops import Shop, Told, raising, transactions
from tests.web.transactions.test_routes import counted, records

READING = [name for name in EVERY if name != "starlette-def"]  # a plain Starlette handler cannot read a form
PAIR = "INSERT INTO counters VALUES (1, 0), (2, 0)"


class Rivalled:
    """Transactions in which something else happens right before the commit."""

    def __init__(self, given: Any, asynchronous: bool) -> None:
        self._given = given
        self._asynchronous = asynchronous
        self.first: list[Callable[[], object]] = []

    def begin(self) -> Any:
        return self._abegin() if self._asynchronous else self._begin()

    @contextmanager
    def _begin(self) -> Iterator[Any]:
        with find_source(self._given, "sync").begin() as tx:
            yield tx
            self._others()

    @asynccontextmanager
    async def _abegin(self) -> AsyncIterator[Any]:
        async with find_source(self._given, "async").begin() as tx:
            yield tx
            self._others()

    def _others(self) -> None:
        if self.first:
            self.first.pop(0)()


@contextmanager
def opened(world: World, name: str, isolation: str = "") -> Iterator[Shop]:
    kind = EVERY[name]
    with transactions(world, kind.driver, isolation) as tx:
        made = Shop(world, kind, Rivalled(tx, kind.driver == "async"))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(params=list(EVERY))
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    world = sqlite_world(request, tmp_path)
    with opened(world, request.param) as made:
        yield made
    world.safe.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reruns, and no waiting between them."""
    monkeypatch.setattr("retrysafe.web.transaction_flow.RERUN_DELAY_SECONDS", 0.0)
    monkeypatch.setattr("retrysafe.web.transaction_flow.MAX_RERUNS", 2)


def is_once(shop: Shop, first: Any, runs: int) -> bool:
    """One answer, one effect, one commit, and the next client gets the same answer."""
    assert (first.status_code, first.content) == (201, Told().body), first.text
    assert (shop.desk.calls, shop.world.effects()) == (["a"] * runs, ["a"])
    assert is_replay(first, shop.post())
    assert counted(shop) == {"new": 1, "completed": 1, "replayed": 1}
    assert len(shop.desk.calls) == runs
    (record,) = records(shop)
    return record.attempt == 1


def is_told(shop: Shop, told: Any) -> bool:
    """Nothing was done. The client is asked to retry, and its retry succeeds."""
    assert is_problem(told, 409, "rolled-back")
    assert int(told.headers["retry-after"]) >= 1
    assert (shop.world.effects(), records(shop)) == ([], [])
    assert counted(shop) == {"new": 1, "released": 1}
    assert shop.post().status_code == 201
    return shop.world.effects() == ["a"]


# Any database -------------------------------------------------------------------------------------


@pytest.mark.store("sqlite")
def test_in_the_handler(sqlite: Shop) -> None:
    sqlite.open().desk.then = [raising(Conflict())] * 2
    assert is_once(sqlite, sqlite.post(), runs=3)


@pytest.mark.store("sqlite")
def test_at_the_commit(sqlite: Shop) -> None:
    sqlite.open().tx.first = [raising(Conflict())] * 2
    assert is_once(sqlite, sqlite.post(), runs=3)


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("policy", [Policy(failures="store"), Policy(failures="release")], ids=["store", "release"])
def test_again_and_again_in_the_handler(sqlite: Shop, policy: Policy, quick: None) -> None:
    sqlite.open(policy=policy).desk.then = [raising(Conflict())] * 3
    told = sqlite.post()
    assert len(sqlite.desk.calls) == 3
    assert is_told(sqlite, told)


@pytest.mark.store("sqlite")
def test_again_and_again_at_the_commit(sqlite: Shop, quick: None) -> None:
    sqlite.open().tx.first = [raising(Conflict())] * 3
    told = sqlite.post()
    assert len(sqlite.desk.calls) == 3
    assert is_told(sqlite, told)


@pytest.mark.store("sqlite")
def test_a_tombstone_that_could_not_be_committed(sqlite: Shop) -> None:
    """An answer that is too large to be kept passes through, but only after its transaction has committed."""
    sqlite.open(policy=Policy(max_answer=100)).tx.first = [raising(Conflict())]
    sqlite.desk.then = [lambda: Told(body=b"x" * 101), lambda: Told(body=b"y" * 101)]
    first = sqlite.post()
    assert (first.status_code, first.content) == (201, b"y" * 101)
    assert is_problem(sqlite.post(), 410, "answer-gone")
    assert (sqlite.world.effects(), len(sqlite.desk.calls)) == (["a"], 2)


@pytest.mark.store("sqlite")
def test_a_minted_key_stays_the_same(sqlite: Shop) -> None:
    policy = Policy(mode="generate")
    sqlite.open(policy=policy, routes={"POST /pay": policy}).desk.then = [raising(Conflict())]
    told = sqlite.post(key=None)
    (record,) = records(sqlite)
    assert (told.status_code, told.headers["idempotency-key"]) == (201, f'"{record.key}"')
    assert len(sqlite.desk.calls) == 2


@pytest.mark.store("sqlite")
def test_a_failure_of_the_second_run_is_the_answer(sqlite: Shop) -> None:
    sqlite.open().desk.then = [raising(Conflict()), raising(ValueError("boom"))]
    first, again = sqlite.post(), sqlite.post()
    assert first.status_code == 500
    assert is_replay(first, again)
    assert (sqlite.world.effects(), len(sqlite.desk.calls)) == ([], 2)


@pytest.mark.store("sqlite")
def test_another_database_is_busy(sqlite: Shop, tmp_path: Path) -> None:
    """SQLite's own "database is locked", from a second file that the handler writes to."""
    ledger, seen = tmp_path / "ledger.db", []
    rival = sqlite3.connect(ledger, isolation_level=None, check_same_thread=False)  # the handler does not catch it
    rival.execute("BEGIN IMMEDIATE")

    def enter() -> None:
        with closing(sqlite3.connect(ledger, timeout=0)) as own:
            try:
                own.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                seen.append(str(error))
                rival.execute("COMMIT")
                raise

    sqlite.open().desk.then_sql = [enter]
    first = sqlite.post()
    rival.close()
    assert seen == ["database is locked"]
    assert sqlite.desk.calls == ["a"], "the first run did not get as far as its answer"
    assert (first.status_code, sqlite.world.effects()) == (201, ["a"])
    assert is_replay(first, sqlite.post())


# The request as it was ----------------------------------------------------------------------------


def pieces() -> Iterator[bytes]:
    yield from (b'{"val', b'ue": ', b'"chunked"}')


async def apieces() -> AsyncIterator[bytes]:
    for piece in pieces():
        yield piece


def chunked(shop: Shop, value: str) -> dict[str, Any]:
    return {"content": apieces() if shop.loop else pieces(), "headers": {"Content-Type": "application/json"}}


def uploaded(shop: Shop, value: str) -> dict[str, Any]:
    return {"data": {"value": value}, "files": {"more": ("b.txt", b"b" * 70_000)}}


BODIES: dict[str, tuple[str, Callable[[Shop, str], dict[str, Any]]]] = {
    "json": ("/pay", lambda shop, value: {"json": {"value": value}}),
    "chunked": ("/pay", chunked),
    "form": ("/form", lambda shop, value: {"data": {"value": value}}),
    "files": ("/form", uploaded),
}


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("sqlite", READING, indirect=True)
def test_the_body_is_there_the_second_time_too(sqlite: Shop) -> None:
    shop = sqlite.open()
    for kind, (path, body) in BODIES.items():
        if kind == "chunked" and shop.kind is EVERY["drf"]:
            continue  # it reads no body without a length, not even in the first run
        shop.desk.calls.clear()
        shop.desk.then, shop.tx.first = [raising(Conflict())], [raising(Conflict())]
        first = shop.post(kind, path=path, **body(shop, kind))
        wanted = kind + "b" * 70_000 if kind == "files" else kind
        assert first.status_code == 201, first.text
        assert shop.desk.calls == [wanted] * 3
        assert wanted in shop.world.effects()


# PostgreSQL's own words ---------------------------------------------------------------------------


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """With counters that all transactions change."""
    world = postgres_world(request, tmp_path)
    with psycopg.connect(world.plain, autocommit=True) as admin:
        admin.execute("DROP TABLE IF EXISTS counters")
        admin.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
        admin.execute(PAIR)
    yield world
    world.safe.close()


def counters(world: World) -> list[int]:
    return [n for (n,) in world.query("SELECT n FROM counters ORDER BY id")]


@pytest.mark.store("postgres")
@pytest.mark.parametrize("name", EVERY)
def test_a_real_serialization_failure_in_the_handler(server: World, name: str) -> None:
    def others() -> None:
        with psycopg.connect(server.plain, autocommit=True) as other:
            other.execute("UPDATE counters SET n = n + 10 WHERE id = 1")

    with opened(server, name, "repeatable read") as shop:
        shop.open().desk.before = [others]
        shop.desk.then_sql = ["UPDATE counters SET n = n + 1 WHERE id = 1"]
        first = shop.post()
        assert is_once(shop, first, runs=1), "the first run did not get as far as its answer"
        assert (counters(server), shop.desk.before) == ([11, 0], [])


@pytest.mark.store("postgres")
@pytest.mark.parametrize("name", EVERY)
def test_a_real_serialization_failure_at_the_commit(server: World, name: str) -> None:
    """Write skew: each transaction has read what the other one changes. The rival commits right before ours."""

    def rival() -> None:
        with psycopg.connect(server.plain) as other:
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            other.execute("SELECT count(*) FROM effects")
            other.execute("UPDATE counters SET n = n + 10 WHERE id = 1")

    with opened(server, name, "serializable") as shop:
        shop.open().tx.first = [rival]
        shop.desk.then_sql = ["SELECT n FROM counters"]
        assert is_once(shop, shop.post(), runs=2)
        assert counters(server) == [10, 0]


@pytest.mark.store("postgres")
@pytest.mark.parametrize("name", EVERY)
def test_a_real_deadlock(server: World, name: str) -> None:
    """Deadlock: the handler has the first row and wants the second, the rival the other way round."""
    rival = psycopg.connect(server.plain)
    rival.execute("SET deadlock_timeout = '1h'")  # the handler's transaction is the victim
    rival.execute("UPDATE counters SET n = n + 10 WHERE id = 2")

    def finish() -> None:
        rival.execute("UPDATE counters SET n = n + 10 WHERE id = 1")
        rival.commit()

    waiting = threading.Thread(target=finish)
    asked = f"SELECT cardinality(pg_blocking_pids({rival.info.backend_pid}))"

    def meet() -> None:
        if not waiting.ident:
            waiting.start()
            until(lambda: server.query(asked) != [(0,)], 60, "the rival to wait for the handler")

    with opened(server, name) as shop:
        shop.open().desk.then_sql = [
            "SET LOCAL deadlock_timeout = '1ms'",
            "UPDATE counters SET n = n + 1 WHERE id = 1",
            meet,
            "UPDATE counters SET n = n + 1 WHERE id = 2",
        ]
        first = shop.post()
        waiting.join(60)
        rival.close()
        assert is_once(shop, first, runs=1), "the first run did not get as far as its answer"
        assert counters(server) == [11, 11]


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("sqlite", ["flask"], indirect=True)
def test_somebody_else_takes_the_key_meanwhile(sqlite: Shop) -> None:
    """Between two runs the key is free. The request that finishes first has the answer, and the other one gets it."""
    shop = sqlite.open()
    twins: list[httpx.Response] = []
    runs: list[None] = []
    shop.tx.first = [raising(Conflict())]

    def before_each_run() -> None:
        runs.append(None)
        if len(runs) == 2:
            twins.append(shop.post())

    shop.app.before_request(before_each_run)
    told = shop.post()
    assert is_replay(twins[0], told)
    assert (shop.desk.calls, shop.world.effects()) == (["a", "a"], ["a"])
