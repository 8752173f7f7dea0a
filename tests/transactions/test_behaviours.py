"""What the transaction strength promises, on every adapter and database it supports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from retrysafe import Policy, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.ops import Claim, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import (
    FingerprintMismatch,
    InProgress,
    NestedTransaction,
    NoAnswer,
    OutcomeUnknown,
    RetrySafeError,
    StoreUnavailable,
    TransactionSplit,
)
from retrysafe.transactions.failures import ErrorClass, classify_error
from tests.transactions.rigs import (
    COMMIT,
    RELEASE,
    SCOPE,
    AsyncCaller,
    Caller,
    World,
    connect_pymysql,
    mongo_client,
    task,
)

Open = Callable[[], Caller]
WAIT_SECONDS = 120.0


def stored(world: World, key: str) -> Record | None:
    return world.safe.execute(Lookup(Key(key, SCOPE).id(world.safe.namespace))).record


def claim(world: World, key: str, **changes: Any) -> Claim:
    return task(world.safe, key, 1, RELEASE.replace(**changes)).build_claim()


class Boom(Exception):
    status_code = 418


OperationalError = type("OperationalError", (Exception,), {})
"""Called as the drivers call theirs, and not theirs: message brokers have one, too."""


def explode() -> None:
    raise Boom("the body failed")


@pytest.mark.parametrize("form", ["block", "run"])
def test_the_effect_and_its_receipt_commit_together(world: World, caller: Open, form: str) -> None:
    user = caller()
    seen: list[object] = []
    ended = getattr(user, form)("k", ["a", lambda: seen.append((world.effects(), stored(world, "k")))])
    assert not ended.replayed
    assert seen == [([], None)], "nothing is visible before the commit"
    assert world.effects() == ["a"]
    record = stored(world, "k")
    assert record is not None
    assert (record.state, record.attempt, record.answer) == (State.COMPLETED, 1, ended.answer)
    assert record == ended.record


@pytest.mark.parametrize("form", ["block", "run"])
def test_a_replay_runs_nothing_and_gives_the_same_bytes(world: World, caller: Open, form: str) -> None:
    user = caller()
    first = getattr(user, form)("k", ["a"])
    before = stored(world, "k")
    again = getattr(user, form)("k", ["b", explode])
    assert again.replayed
    assert again.answer == first.answer
    assert world.effects() == ["a"]
    assert stored(world, "k") == before, "a replay writes nothing"


@pytest.mark.parametrize("form", ["block", "run"])
def test_an_exception_rolls_both_back_and_a_retry_runs(world: World, caller: Open, form: str) -> None:
    user = caller()
    with pytest.raises(Boom):
        getattr(user, form)("k", ["a", explode])
    assert (world.effects(), stored(world, "k")) == ([], None)
    assert not getattr(user, form)("k", ["a"]).replayed
    assert world.effects() == ["a"]


@pytest.mark.parametrize("form", ["block", "run"])
def test_a_failure_that_is_final_is_stored_after_the_rollback(world: World, caller: Open, form: str) -> None:
    user = caller()
    keep = Policy(failures="store")
    with pytest.raises(Boom):
        getattr(user, form)("k", ["a", explode], policy=keep)
    assert world.effects() == []
    record = stored(world, "k")
    assert record is not None
    assert record.state is State.COMPLETED
    again = getattr(user, form)("k", ["b"], policy=keep)
    assert again.replayed
    assert again.answer == record.answer
    assert world.effects() == []


def test_another_request_with_the_key_is_a_mismatch(world: World, caller: Open) -> None:
    user = caller()
    user.block("k", ["a"])
    with pytest.raises(FingerprintMismatch):
        user.run("k", ["b"], request=2)
    with pytest.raises(FingerprintMismatch):
        user.block("k", ["b"], request=2)
    assert world.effects() == ["a"]


def test_busy_while_another_holds_it(world: World, caller: Open) -> None:
    with Holding(caller(), "k", ["a"]) as first:
        with pytest.raises(InProgress):
            caller().run("k", ["b"])
        with pytest.raises(InProgress):
            caller().block("k", ["b"])
        first.go()
    assert world.effects() == ["a"]
    assert caller().run("k", ["b"]).replayed


def test_waiting_callers_get_the_answer_of_the_first(world: World, caller: Open) -> None:
    wait = RELEASE.replace(busy="wait", wait=WAIT_SECONDS)
    with Holding(caller(), "k", ["a"]) as first:
        # The first look of the second meets the first inside; its event is what lets the first go on.
        with pytest.raises(InProgress):
            caller().run("k", ["b"])
        waiter = Background(lambda: caller().run("k", ["b"], policy=wait))
        first.go()
        ended = waiter.result()
    assert ended.replayed
    assert world.effects() == ["a"]


def test_of_many_at_once_exactly_one_has_its_effect(world: World, caller: Open) -> None:
    rivals = [caller() for _ in range(4)]
    start = threading.Barrier(len(rivals))
    wait = RELEASE.replace(busy="wait", wait=WAIT_SECONDS)

    def compete(number: int) -> Any:
        start.wait(WAIT_SECONDS)
        return rivals[number].run("k", [f"by-{number}"], policy=wait)

    with ThreadPoolExecutor(len(rivals)) as pool:
        ends = list(pool.map(compete, range(len(rivals))))
    assert len(world.effects()) == 1
    assert len({end.answer for end in ends}) == 1
    assert [end.replayed for end in ends].count(False) == 1


OWN_CONNECTIONS = ("pool", "factory", "maker", "maker-asyncpg", "maker-psycopg", "engine", "client")
"""Sources that give every transaction a connection of its own."""


def test_nesting_is_refused(world: World, caller: Open, rig: str) -> None:
    """One connection has one transaction. Where each has a connection of its own there is nothing to refuse, but
    SQLite's file still has only one writer."""
    user = caller()
    steps: list[Any] = ["a", lambda: user.nested("inner", "b")]
    if not rig.endswith(OWN_CONNECTIONS):
        with pytest.raises(NestedTransaction):
            user.run("outer", steps)
    elif rig.startswith("sqlite"):
        with pytest.raises(InProgress):
            user.run("outer", steps)
    else:
        user.run("outer", steps)
        assert world.effects() == ["a", "b"]
        return
    assert world.effects() == []
    assert stored(world, "outer") is None


COMMIT_EACH = {
    "postgres-psycopg-autocommit",
    "postgres-asyncpg",
    "postgres-asyncpg-pool",
    "sqlite-sqlite3-factory",
    "sqlite-django",
    "mysql-pymysql-factory",
    "duckdb-connection",
    "duckdb-factory",
    "mongodb-client",
    "mongodb-session",
    "mongodb-async-client",
    "mongodb-async-session",
}
"""Connections that, outside of a transaction, commit each statement by itself."""


@pytest.mark.parametrize("form", ["block", "run"])
def test_a_commit_in_the_middle_is_detected_and_told(world: World, caller: Open, rig: str, form: str) -> None:
    user = caller()
    with pytest.raises(TransactionSplit) as caught:
        getattr(user, form)("k", ["a", COMMIT, "b"])
    assert not getattr(caught.value, "__notes__", []), caught.value.__notes__
    stays = ["a", "b"] if rig in COMMIT_EACH else ["a"]
    assert world.effects() == stays
    record = stored(world, "k")
    assert record is not None
    assert record.state is State.UNCERTAIN
    with pytest.raises(OutcomeUnknown):
        getattr(caller(), form)("k", ["a2"])
    assert world.effects() == stays


@pytest.mark.parametrize("form", ["block", "run"])
def test_a_commit_in_the_middle_of_a_body_that_then_raises_is_detected_too(
    world: World, caller: Open, rig: str, form: str
) -> None:
    """Were it taken for a plain failure, the retry would write "a" a second time."""
    user = caller()
    with pytest.raises(TransactionSplit) as caught:
        getattr(user, form)("k", ["a", COMMIT, "b", explode])
    assert isinstance(caught.value.__cause__, Boom)
    stays = ["a", "b"] if rig in COMMIT_EACH else ["a"]
    assert world.effects() == stays
    record = stored(world, "k")
    assert record is not None
    assert record.state is State.UNCERTAIN
    with pytest.raises(OutcomeUnknown):
        getattr(caller(), form)("k", ["a2"])
    assert world.effects() == stays


@pytest.mark.parametrize("form", ["block", "run"])
def test_a_commit_in_the_middle_of_a_body_that_then_meets_an_sql_error_is_detected_too(
    world: World, caller: Open, rig: str, form: str
) -> None:
    """PostgreSQL answers nothing more in a transaction with an error: what was before it is found out after it."""
    user = caller()
    with pytest.raises(TransactionSplit) as caught:
        getattr(user, form)("k", ["a", COMMIT, "b", "b"])
    assert classify_error(caught.value.__cause__ or caught.value) is ErrorClass.CONSTRAINT
    stays = ["a", "b"] if rig in COMMIT_EACH else ["a"]
    assert world.effects() == stays
    record = stored(world, "k")
    assert record is not None
    assert record.state is State.UNCERTAIN
    with pytest.raises(OutcomeUnknown):
        getattr(caller(), form)("k", ["a2"])
    assert world.effects() == stays


@pytest.mark.parametrize("form", ["block", "run"])
@pytest.mark.parametrize(
    "error", [TimeoutError("mail server"), ConnectionRefusedError(111, "smtp"), OperationalError("broker")]
)
def test_a_commit_before_an_error_that_looks_like_a_lost_connection_is_detected_too(
    world: World, caller: Open, rig: str, form: str, error: Exception
) -> None:
    """It is the user's own call that failed: our connection is there, and can be asked."""
    ran: list[int] = []

    def call_away() -> None:
        ran.append(1)
        raise error

    with pytest.raises(TransactionSplit) as caught:
        getattr(caller(), form)("k", ["a", COMMIT, call_away])
    assert caught.value.__cause__ is error
    assert (ran, world.effects()) == ([1], ["a"])
    record = stored(world, "k")
    assert record is not None
    assert record.state is State.UNCERTAIN
    with pytest.raises(OutcomeUnknown):
        getattr(caller(), form)("k", ["a2"])
    assert world.effects() == ["a"]


@pytest.mark.parametrize("form", ["block", "run"])
def test_an_error_that_looks_like_a_lost_connection_without_a_commit_is_a_failure_like_any_other(
    world: World, caller: Open, form: str
) -> None:
    user = caller()

    def call_away() -> None:
        raise TimeoutError("mail server")

    with pytest.raises(TimeoutError, match="mail server"):
        getattr(user, form)("k", ["a", call_away])
    assert (world.effects(), stored(world, "k")) == ([], None)
    assert getattr(user, form)("k", ["a"]).replayed is False
    assert world.effects() == ["a"]


@pytest.mark.parametrize("form", ["block", "run"])
def test_an_sql_error_without_a_commit_is_a_failure_like_any_other(world: World, caller: Open, form: str) -> None:
    user = caller()
    for _ in range(2):  # also where the connection has seen a commit of ours before
        with pytest.raises(Exception, match=r".") as caught:
            getattr(user, form)("k", ["b", "b"])
        assert classify_error(caught.value) is ErrorClass.CONSTRAINT
        assert world.effects() == []
    assert getattr(user, form)("k", ["b"]).replayed is False
    with pytest.raises(Exception, match=r".") as caught:
        getattr(user, form)("other", ["c", "c"])
    assert classify_error(caught.value) is ErrorClass.CONSTRAINT
    assert world.effects() == ["b"]


def test_a_living_guard_of_the_same_key_keeps_it_busy(world: World, caller: Open) -> None:
    world.safe.execute(claim(world, "k"))
    with pytest.raises(InProgress):
        caller().run("k", ["a"])
    assert world.effects() == []


def test_an_abandoned_guard_is_taken_over_or_stays_uncertain(world: World, caller: Open) -> None:
    user = caller()
    for key, abandoned in (("rerun", "rerun"), ("unknown", "uncertain")):
        world.safe.execute(replaced(claim(world, key, abandoned=abandoned), now=1))
    ended = user.run("rerun", ["a"])
    record = stored(world, "rerun")
    assert record == ended.record
    assert record is not None
    assert (record.state, record.attempt, record.created) == (State.COMPLETED, 2, 1)
    with pytest.raises(OutcomeUnknown):
        user.run("unknown", ["b"])
    assert world.effects() == ["a"]


def test_an_expired_receipt_begins_a_new_life(world: World, caller: Open) -> None:
    user = caller()
    first = user.run("k", ["a"])
    world.safe.execute(Lookup(first.record.id))
    expire(world, first.record.id)
    second = user.run("k", ["b"], request=2)
    assert not second.replayed
    assert second.record.run != first.record.run
    assert stored(world, "k") == second.record
    assert world.effects() == ["a", "b"]


def test_of_a_guard_that_claims_meanwhile_and_a_transaction_one_wins(world: World, caller: Open) -> None:
    """Two strengths on one key is a mistake, and even then nothing happens twice. On SQLite it cannot even be
    made: the open transaction holds the only write lock. On PostgreSQL it has written its record, and the guard is told
    that the key is busy. Elsewhere the guard wins, and everything is rolled back."""
    if world.url.startswith("postgresql"):
        replies: list[Any] = []
        assert not caller().run("k", ["a", lambda: replies.append(world.safe.execute(claim(world, "k")))]).replayed
        assert ([reply.granted for reply in replies], world.effects()) == ([False], ["a"])
        return
    hasty = RetrySafe(f"{world.url}?timeout=0.1") if world.url.startswith("sqlite") else world.safe
    hasty.execute(Lookup(b"0" * 32))
    with pytest.raises(StoreUnavailable if hasty is not world.safe else InProgress):
        caller().run("k", ["a", lambda: hasty.execute(claim(world, "k")) and None])
    assert world.effects() == []
    hasty.close()


def test_an_answer_that_is_not_final_rolls_back(world: World, caller: Open) -> None:
    ended = caller().run("k", ["a"], policy=Policy(failures=lambda status, error: status != 201))
    assert ended.answer.status == 201
    assert (world.effects(), stored(world, "k")) == ([], None)


def test_a_block_without_an_answer_is_refused(world: World, caller: Open) -> None:
    user = caller()
    if isinstance(user, AsyncCaller):

        async def leave() -> None:
            async with world.safe.transaction(user.given, key="k", scope=SCOPE):
                pass

        with pytest.raises(NoAnswer):
            user.runner.run(leave())
    else:
        with pytest.raises(NoAnswer), world.safe.transaction(user.given, key="k", scope=SCOPE):
            pass
    assert stored(world, "k") is None
    assert not user.run("k", ["a"]).replayed


def test_the_users_connection_is_left_as_it_was(world: World, caller: Open) -> None:
    """After a replay, a refusal, a failure and a success the same connection serves on."""
    user = caller()
    user.run("k", ["a"])
    user.run("k", ["b"])
    with pytest.raises(RetrySafeError):
        user.run("k", ["c"], request=2)
    with pytest.raises(Boom):
        user.run("l", ["d", explode])
    user.run("m", ["e"])
    assert world.effects() == ["a", "e"]


# Helpers ------------------------------------------------------------------------------------------


def replaced(op: Claim, *, now: int) -> Claim:
    from dataclasses import replace

    return replace(op, now=now)


def expire(world: World, record_id: bytes) -> None:
    """Turn its clock back, as only a test may."""
    import sqlite3

    import psycopg

    if world.url.startswith("sqlite"):
        connection = sqlite3.connect(world.path)
        connection.execute("UPDATE retrysafe_keys SET expires = 1 WHERE id = ?", [record_id])
        connection.commit()
        connection.close()
        return
    if world.url.startswith("duckdb"):
        import duckdb

        with duckdb.connect(world.path) as same:
            same.execute("UPDATE retrysafe_keys SET expires = 1 WHERE id = ?", [record_id])
        return
    if world.url.startswith("mongodb"):
        with mongo_client(world) as client:
            client.get_default_database()["tx_keys"].update_one({"_id": record_id}, {"$set": {"expires": 1}})
        return
    table = world.url.rpartition("table=")[2]
    if world.url.startswith(("mysql", "mariadb")):
        with connect_pymysql(world, autocommit=True) as admin, admin.cursor() as cursor:
            cursor.execute(f"UPDATE {table}_keys SET expires = 1 WHERE id = %s", [record_id])
        return
    with psycopg.connect(world.plain) as connection:
        connection.execute(f"UPDATE {table}_keys SET expires = 1 WHERE id = %s", [record_id])


class Background:
    """Something that runs beside the test."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(function)

    def result(self) -> Any:
        try:
            return self._future.result(WAIT_SECONDS)
        finally:
            self._pool.shutdown()


class Holding:
    """A user that waits in the middle of its transaction until the test lets it continue."""

    def __init__(self, user: Caller, key: str, steps: list[Any]) -> None:
        self._inside = threading.Event()
        self._go = threading.Event()
        self._work = lambda: user.run(key, [*steps, self._inside.set, lambda: self._go.wait(WAIT_SECONDS)])

    def __enter__(self) -> Holding:
        self._running = Background(self._work)
        assert self._inside.wait(WAIT_SECONDS)
        return self

    def go(self) -> None:
        self._go.set()

    def __exit__(self, *error: object) -> None:
        self._go.set()
        self._running.result()
