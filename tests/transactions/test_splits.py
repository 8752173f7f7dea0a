"""A session that ends its own transaction and then raises: after a rollback it is a failure like any other, after a
commit it is split."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.errors import OutcomeUnknown, TransactionSplit
from retrysafe.operations import stage


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/a.db")
    with made.begin() as db:
        db.execute(text("CREATE TABLE items (item text)"))
    yield made
    made.dispose()


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{tmp_path}/a.db", policy=Policy(failures="release")) as made:
        made.migrate()
        yield made


def items(engine: Engine) -> list[str]:
    with engine.begin() as db:
        return [item for (item,) in db.execute(text("SELECT item FROM items"))]


def body(safe: RetrySafe, given: Any, how: str, fails: bool, key: str = "k") -> None:
    with safe.transaction(given, key=key, scope="t", request=1) as tx:
        if tx.replayed:
            return
        session: Session = tx.handle
        session.execute(text("INSERT INTO items VALUES ('a')"))
        if fails:
            getattr(session, how)()
            raise LookupError(how)
        tx.answer = Answer(201, {})


def test_a_rollback_before_the_raise_is_no_split(safe: RetrySafe, engine: Engine) -> None:
    maker = sessionmaker(engine)
    with pytest.raises(LookupError):
        body(safe, maker, "rollback", True)
    assert items(engine) == []
    body(safe, maker, "rollback", False)
    assert items(engine) == ["a"]


def test_a_commit_before_the_raise_is_one(safe: RetrySafe, engine: Engine) -> None:
    maker = sessionmaker(engine)
    with pytest.raises(TransactionSplit):
        body(safe, maker, "commit", True)
    with pytest.raises(OutcomeUnknown):
        body(safe, maker, "commit", False)
    assert items(engine) == ["a"]


def test_a_session_that_is_used_again_is_not_watched_twice(safe: RetrySafe, engine: Engine) -> None:
    """The commit of the first transaction says nothing about the second."""
    with Session(engine) as session:
        body(safe, session, "rollback", False)
        with pytest.raises(LookupError):
            body(safe, session, "rollback", True, key="other")
    assert items(engine) == ["a"]


@pytest.mark.parametrize("given", [sessionmaker, lambda engine: engine], ids=["sessionmaker", "engine"])
def test_a_commit_is_seen_although_the_handle_was_closed_after_it(safe: RetrySafe, engine: Engine, given: Any) -> None:
    """A closed connection cannot be asked, but its commit was seen."""

    def attempt() -> None:
        with safe.transaction(given(engine), key="k", scope="t", request=1) as tx:
            tx.handle.execute(text("INSERT INTO items VALUES ('a')"))
            tx.handle.commit()
            tx.handle.close()
            raise LookupError("closed")

    with pytest.raises(TransactionSplit):
        attempt()
    with pytest.raises(OutcomeUnknown):
        body(safe, sessionmaker(engine), "commit", False)
    assert items(engine) == ["a"]


def test_a_commit_before_a_job_that_cannot_be_written_does_not_run_the_body_again(
    safe: RetrySafe, engine: Engine, tmp_path: Path
) -> None:
    """The file is locked when the job is to be written: by then the body has committed."""
    path = f"{tmp_path}/a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:

        @safe.transactional("k:{n}", tx=lambda: sqlite3.connect(path, timeout=0.0), scope="t")
        def work(n: int, tx: sqlite3.Connection) -> int:
            tx.execute("INSERT INTO items VALUES ('a')")
            tx.commit()
            other.execute("BEGIN IMMEDIATE")
            stage(tx, "mail", {})
            return 1

        with pytest.raises(TransactionSplit):
            work(1)
        other.execute("ROLLBACK")
    assert items(engine) == ["a"]
