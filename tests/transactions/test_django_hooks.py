"""What Django runs after the commit: its errors reach the caller, and change nothing about what was committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe import Answer, RetrySafe, stage
from retrysafe.core.jobs import ListJobs
from tests.transactions.django_databases import django_alias

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the database during app initialization")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    where = tmp_path / "app.db"
    with sqlite3.connect(where) as db:
        db.execute("CREATE TABLE effects (value TEXT)")
    db.close()
    return where


@pytest.fixture
def alias(path: Path) -> Iterator[str]:
    with django_alias(f"sqlite:///{path}", 1.0) as made:
        yield made


@pytest.fixture
def safe(path: Path, alias: str) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{path}", tx=f"django:{alias}") as made:
        made.migrate()
        yield made


def effects(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        return [value for (value,) in db.execute("SELECT value FROM effects")]
    finally:
        db.close()


@pytest.mark.parametrize("error", [ValueError("no mail today"), ConnectionRefusedError("no mail server")])
def test_an_error_of_a_hook_reaches_the_caller_and_the_work_is_done(
    safe: RetrySafe, path: Path, alias: str, error: Exception
) -> None:
    from django.db import connections, transaction

    def fails() -> None:
        raise error

    def pay(tries: int) -> Answer:
        with safe.transaction(f"django:{alias}", key="pay-7", scope="acct-1", request=1) as tx:
            if not tx.replayed:
                with connections[alias].cursor() as cursor:
                    cursor.execute("INSERT INTO effects VALUES ('paid')")
                transaction.on_commit(fails, using=alias)
                tx.answer = Answer(201, {"try": tries})
        return tx.answer

    with pytest.raises(type(error), match="no mail") as raised:
        pay(1)
    assert "after the commit" in "".join(raised.value.__notes__)
    assert effects(path) == ["paid"]
    assert pay(2).body == b'{"try":1}', "a retry is given the stored answer"
    assert effects(path) == ["paid"]


def test_an_error_of_a_hook_in_a_local_step_is_told_and_the_operation_goes_on(
    safe: RetrySafe, path: Path, alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import transaction

    operation = safe.operation("pay")
    runs = []

    @operation.local
    def enter(tx: object) -> int:
        runs.append(1)
        stage(tx, "paid", {})
        transaction.on_commit(lambda: 1 / 0, using=alias)
        return len(runs)

    @operation.body
    def body() -> Answer:
        return Answer(201, {"runs": enter()})

    assert operation(key="k").body == b'{"runs":1}'
    assert len(safe.execute(ListJobs())) == 1
    assert "ZeroDivisionError" in caplog.text
