"""Routes in transactions beside other transactions: statements that the server counts, and transactions it rolls
back."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from retrysafe import Answer, Policy
from tests.operations.test_commits import postgres_commits, sqlite_commits
from tests.transactions.conftest import postgres_world
from tests.transactions.rigs import World
from tests.waiting import until
from tests.web.frameworks.calling import is_problem, is_replay
from tests.web.transactions.shops import KINDS, Shop, transactions
from tests.web.transactions.test_routes import RELEASE, records

# What it costs ------------------------------------------------------------------------------------


def commits(world: World, work: Any) -> int:
    if world.url.startswith("sqlite"):
        return sqlite_commits(SimpleNamespace(database=world.path), work)  # type: ignore[arg-type]
    prefix = world.url.rpartition("table=")[2]

    with psycopg.connect(world.plain, autocommit=True) as admin:

        def sql(text: str) -> Any:
            done = admin.execute(text)
            return done.fetchall() if done.description else []

        w = SimpleNamespace(orders="effects", keys=f"{prefix}_keys", outbox=f"{prefix}_outbox", sql=sql)
        try:
            return postgres_commits(w, work)  # type: ignore[arg-type]
        finally:
            sql("DROP FUNCTION effects_log CASCADE")
            sql("DROP TABLE effects_log")


def test_one_commit_in_all_and_none_for_a_replay(shop: Shop) -> None:
    shop.open()
    shop.post("warm", "warm")  # connections, the store's installation
    assert commits(shop.world, lambda: shop.post("k", "a")) == 1
    assert commits(shop.world, lambda: shop.post("k", "a")) == 0
    assert shop.world.effects() == ["a", "warm"]


# Another caller at it -----------------------------------------------------------------------------


def connect(world: World) -> Any:
    return sqlite3.connect(world.path) if world.url.startswith("sqlite") else psycopg.connect(world.plain)


def test_while_another_is_at_it_nothing_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.transactions.locks.LOCK_TIMEOUT_SECONDS", 0.05)
    shop.open()
    other = connect(shop.world)
    with shop.world.safe.transaction(other, key="k", scope="alice", request=1) as tx:
        busy = shop.post()
        tx.answer = Answer(200, {})
    assert is_problem(busy, 409, "in-progress")
    assert int(busy.headers["retry-after"]) >= 1
    assert is_problem(shop.post(), 422, "mismatch")
    assert shop.desk.calls == []
    other.close()


def test_who_waits_gets_its_turn(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.transactions.locks.LOCK_TIMEOUT_SECONDS", 0.05)
    looks: list[None] = []

    def drawn(least: float, most: float) -> float:
        looks.append(None)
        return least

    monkeypatch.setattr("retrysafe.web.transaction_flow.random.uniform", drawn)
    shop.open(policy=Policy(busy="wait", wait=60))
    other, told = connect(shop.world), []
    waiting = threading.Thread(target=lambda: told.append(shop.post()))

    def comes_to_nothing() -> None:
        with shop.world.safe.transaction(other, key="k", scope="alice", request=1):
            waiting.start()
            until(lambda: len(looks) > 0, 60, "the request to find the key busy")
            raise LookupError

    with pytest.raises(LookupError):
        comes_to_nothing()
    waiting.join(60)
    assert [response.status_code for response in told] == [201]
    assert shop.world.effects() == ["a"]
    other.close()


# What only PostgreSQL can show --------------------------------------------------------------------


@pytest.fixture
def deferred(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Tables with constraints that are checked at the commit."""
    world = postgres_world(request, tmp_path)
    with psycopg.connect(world.plain, autocommit=True) as admin:
        for statement in (
            "DROP TABLE IF EXISTS children, parents",
            "CREATE TABLE parents (id int PRIMARY KEY)",
            "CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
        ):
            admin.execute(statement)
    yield world
    world.safe.close()


@pytest.fixture(params=list(KINDS))
def late(request: pytest.FixtureRequest, deferred: World) -> Iterator[Shop]:
    kind = KINDS[request.param]
    with transactions(deferred, kind.driver) as tx:
        made = Shop(deferred, kind, tx)
        yield made
        made.close()


@pytest.mark.store("postgres")
def test_a_constraint_that_fails_at_the_commit(late: Shop) -> None:
    shop = late.open()
    shop.desk.then_sql = ["INSERT INTO children VALUES (99)"]
    first = shop.post()
    assert is_problem(first, 500, "failed")
    shop.desk.then_sql = ()
    assert is_replay(first, shop.post())
    assert (shop.world.effects(), shop.world.query("SELECT * FROM children")) == ([], [])


@pytest.mark.store("postgres")
def test_a_constraint_that_fails_at_the_commit_and_is_not_final(late: Shop) -> None:
    shop = late.open(policy=RELEASE)
    shop.desk.then_sql = ["INSERT INTO children VALUES (99)"]
    assert is_problem(shop.post(), 500, "failed-for-now")
    assert records(shop) == []
    shop.desk.then_sql = ()
    assert shop.post().status_code == 201
    assert shop.world.effects() == ["a"]
