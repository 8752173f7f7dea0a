"""Jobs that commit with a transaction: in a block and in a function, published if it commits and only then."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import ListJobs
from retrysafe.errors import UsageError
from retrysafe.operations import stage


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{tmp_path}/a.db", tx=tmp_path / "a.db") as made:
        made.migrate()
        yield made


def topics(safe: RetrySafe) -> list[str]:
    return [staged.job.topic for staged in safe.execute(ListJobs())]


def test_a_job_that_is_staged_after_the_commit_is_refused(safe: RetrySafe) -> None:
    """A background task of a handler has the handler's context, and goes on after its transaction."""
    with safe.transaction(safe.tx, key="k", scope="t", request=1) as tx:
        background, handle = copy_context(), tx.handle
        tx.answer = Answer(201, {})
    with pytest.raises(UsageError, match="has ended"):
        background.run(stage, handle, "late", {})
    assert topics(safe) == []


@pytest.mark.parametrize("through", ["handle", "block"])
def test_in_a_block(safe: RetrySafe, through: str) -> None:
    for _ in range(2):
        with safe.transaction(safe.tx, key="k", scope="t", request=1) as tx:
            if not tx.replayed:
                stage(tx.handle if through == "handle" else tx, "paid", {"order": 7})
                tx.answer = Answer(201, {})
    assert topics(safe) == ["paid"]


def test_a_block_that_fails_publishes_nothing(safe: RetrySafe) -> None:
    block = safe.transaction(safe.tx, key="k", scope="t", request=1)

    def fails() -> None:
        with block as tx:
            stage(tx, "paid", {})
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert topics(safe) == []
    with pytest.raises(UsageError, match="no transaction of ours is open"):
        stage(block, "paid", {})


async def test_in_an_async_block(safe: RetrySafe) -> None:
    async with safe.transaction(safe.tx, key="k", scope="t", request=1) as tx:
        await stage(tx, "paid", {})
        tx.answer = Answer(201, {})
    assert topics(safe) == ["paid"]
    await safe.async_store.aclose()


def test_in_a_function(safe: RetrySafe) -> None:
    failing = [True]

    @safe.transactional("pay:{order}", tx=safe.tx)
    def pay(order: int, tx: sqlite3.Connection) -> int:
        stage(tx, "paid", {"order": order})
        if failing:
            failing.clear()
            raise ConnectionError("once")
        return order

    call: Any = pay
    with pytest.raises(ConnectionError):
        call(7)
    assert topics(safe) == []
    assert [call(7), call(7)] == [7, 7]
    assert topics(safe) == ["paid"]


@pytest.fixture
def rung(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """What was in the outbox at each notification, and which waiters the store notified."""
    heard: list[list[str]] = []

    def wake() -> None:
        heard.append(topics(safe))

    safe.worker_notifier.attach(wake)
    yield heard
    safe.worker_notifier.detach(wake)


def test_the_commit_rings_the_bell(safe: RetrySafe, rung: list[list[str]]) -> None:
    """Else the job waits for the worker's next tick. The notification comes after the commit: before it, a
    worker would see nothing."""
    with safe.transaction(safe.tx, key="k", scope="t", request=1) as tx:
        stage(tx, "paid", {})
        tx.answer = Answer(201, {})
    assert rung == [["paid"]]

    @safe.transactional("pay:{order}", tx=safe.tx)
    def pay(order: int, tx: sqlite3.Connection) -> int:
        stage(tx, "more", {"order": order})
        return order

    call: Any = pay
    call(7)
    assert len(rung) == 2
    assert sorted(rung[1]) == ["more", "paid"]
    call(7)  # a replay
    with safe.transaction(safe.tx, key="other", scope="t", request=1) as tx:
        tx.answer = Answer(201, {})  # nothing staged
    assert len(rung) == 2


async def test_the_commit_of_async_code_rings_it_too(safe: RetrySafe, rung: list[list[str]]) -> None:
    async with safe.transaction(safe.tx, key="k", scope="t", request=1) as tx:
        await stage(tx, "paid", {})
        tx.answer = Answer(201, {})
    assert rung == [["paid"]]
    await safe.async_store.aclose()


@pytest.mark.store("postgres")
def test_a_worker_elsewhere_hears_it_through_the_store(request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue("postgres_url")
    with RetrySafe(url) as safe, RetrySafe(url) as elsewhere, psycopg.connect(url) as connection:
        safe.migrate()
        store: Any = elsewhere.store
        listening = threading.Thread(target=store.wait, args=(safe.worker_notifier.id, 300.0), daemon=True)
        listening.start()
        for number in range(100):
            with safe.transaction(connection, key=f"k{number}", scope="t", request=1) as tx:
                stage(tx, "paid", {})
                tx.answer = Answer(201, {})
            listening.join(0.1)  # it may not listen yet: then the next one is heard
            if not listening.is_alive():
                break
        assert not listening.is_alive()


def test_another_handle_is_refused(safe: RetrySafe) -> None:
    with (
        pytest.raises(UsageError, match="pass the `tx` you were given here"),
        safe.transaction(safe.tx, key="k", scope="t", request=1),
    ):
        stage(object(), "paid", {})


@pytest.mark.store("postgres")
def test_psycopg_in_pipeline_mode_says_what_is_wrong(request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue("postgres_url")
    with RetrySafe(url) as safe, psycopg.connect(url, autocommit=True) as connection:
        safe.migrate()
        with (
            connection.pipeline(),
            pytest.raises(UsageError, match="is in pipeline mode"),
            safe.transaction(connection, key="k", scope="t", request=1),
        ):
            raise AssertionError("it never begins")
