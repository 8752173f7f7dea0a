"""Where local steps run: the store's own database, another one (receipts), or nowhere; and with which drivers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from retrysafe import Answer, KeyRing, RetrySafe
from retrysafe.core.ops import List
from retrysafe.errors import (
    NotFinished,
    NotSameDatabase,
    OperationChanged,
    OperationError,
    OutcomeUnknown,
    OutcomeUnrecorded,
    SchemaMissing,
    UsageError,
)
from retrysafe.operations import Operation, Undo, stage
from retrysafe.operations.journal import OperationJournal
from retrysafe.operations.receipts import RECORD_ROW
from tests.opening import unique, with_option
from tests.operations.elsewhere import Elsewhere, Killed, lapse
from tests.operations.world import Ordering, World, make_world

# Drivers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "database",
    [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "mysql", "mariadb")],
)
def test_sqlalchemy_sessions(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if database == "sqlite":
        url, engine = f"sqlite:///{tmp_path}/a.db", create_engine(f"sqlite:///{tmp_path}/a.db")
    else:
        plain = request.getfixturevalue(f"{database}_url")
        url = with_option(plain, "table", unique())
        scheme, _, rest = plain.partition("://")
        engine = create_engine(f"{scheme}+{'psycopg' if database == 'postgres' else 'pymysql'}://{rest}")
    table = unique()
    with engine.begin() as db:
        db.execute(text(f"CREATE TABLE {table} (item text)"))
    safe = RetrySafe(url, tx=sessionmaker(engine))
    safe.migrate()
    op = safe.operation("sessions")

    @op.local
    def insert(tx: Session, item: str) -> str:
        tx.execute(text(f"INSERT INTO {table} VALUES (:item)"), {"item": item})
        stage(tx, "inserted", {"item": item})
        return item

    @op.local
    def finish(tx: Session, item: str) -> Answer:
        return Answer(200, {"item": item})

    @op.body
    def body(item: str) -> Answer:
        return finish(insert(item))

    for _ in range(2):
        assert op("a", key="k") == Answer(200, {"item": "a"})
    with engine.begin() as db:
        assert list(db.execute(text(f"SELECT item FROM {table}"))) == [("a",)]
    safe.close()
    engine.dispose()


@pytest.mark.store("postgres")
async def test_an_async_psycopg_pool(request: pytest.FixtureRequest) -> None:
    plain = request.getfixturevalue("postgres_url")
    pool = AsyncConnectionPool(plain, min_size=1, max_size=2, open=False)
    async with pool, RetrySafe(with_option(plain, "table", unique()), tx=pool) as safe:
        await safe.async_store.migrate()
        op = safe.operation("pooled")

        @op.local
        async def ask(tx: psycopg.AsyncConnection[Any]) -> Answer:
            cursor = await tx.execute("SELECT 41 + 1")
            row = await cursor.fetchone()
            await stage(tx, "asked", {})
            return Answer(200, {"n": row[0] if row else None})

        @op.body
        async def body() -> Answer:
            return await ask()

        assert (await op(key="k")).json() == {"n": 42}


# Another database --------------------------------------------------------------------------------


def test_a_transaction_on_another_database_is_refused(w: World, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    other = make_world(request, tmp_path, w.store, w.mode)
    empty = tmp_path / "empty.db"
    try:
        for number, tx in enumerate((other.safe.tx, empty)):
            if number == 1 and w.store != "sqlite":
                continue
            with pytest.raises(NotSameDatabase) if w.store == "sqlite" else outside(other, w):
                w.safe.tx = tx
                ordering = Ordering(w, version=number + 1)
                ordering(key=f"k{number}")
            assert (w.items(), w.sent) == ([], [])
    finally:
        other.close()


def outside(other: World, w: World) -> Any:
    """On PostgreSQL the two worlds share a database: another installation's tables there are no other database."""
    w.safe.tx = other.safe.tx
    w.sql(f"UPDATE {w.keys.removesuffix('_keys')}_meta SET value = 'somebody else' WHERE name = 'install'")
    from retrysafe.transactions.binding import build_tx_context

    build_tx_context(w.safe).install_id.value = "as it was"
    return pytest.raises(NotSameDatabase)


# Receipts: the store is not the user's database --------------------------------------------------


def inserting(safe: RetrySafe, meet: Callable[[str], None] = lambda step: None, **undo: Any) -> Operation:
    op = safe.operation("elsewhere")

    @op.local(**undo)
    def insert(tx: sqlite3.Connection, item: str) -> str:
        tx.execute("INSERT INTO items VALUES (?)", (item,))
        meet("insert")
        return item.upper()

    @op.foreign
    def call(item: str, *, key: str) -> str:
        meet("call")
        return item

    @op.local
    def finish(tx: sqlite3.Connection, item: str) -> Answer:
        tx.execute("INSERT INTO items VALUES ('finished')")
        meet("finish")
        return Answer(200, {"item": item})

    @op.body
    def body(item: str) -> Answer:
        inserted = insert(item)
        meet("between")
        return finish(call(inserted))

    return op


def test_a_receipt_commits_with_the_users_writes(elsewhere: Elsewhere) -> None:
    op = inserting(elsewhere.safe)
    for _ in range(2):
        assert op("a", key="k") == Answer(200, {"item": "A"})
    assert elsewhere.items() == ["a", "finished"]
    numbered = ["0:insert", "2:finish"] if elsewhere.forms == "previous" else ["0:finish", "0:insert", RECORD_ROW]
    assert [step for (step,) in elsewhere.sql("SELECT step FROM retrysafe_receipts ORDER BY step")] == numbered


@pytest.mark.parametrize("where", ["between", "call", "finish"])
def test_the_store_may_lag_behind_the_receipts(elsewhere: Elsewhere, where: str, monkeypatch: Any) -> None:
    """The process dies after the user's commit, before the store has the result: the step is not run again."""
    died: list[str] = []

    def meet(step: str) -> None:
        if step == where and not died:
            died.append(step)
            raise Killed

    op = inserting(elsewhere.safe, meet)
    # A process that was killed writes nothing down on its way out.
    monkeypatch.setattr("retrysafe.operations.flow.settle_interrupted", lambda *args: iter(()))
    with pytest.raises(Killed):
        op("a", key="k")
    lapse(elsewhere)
    assert op("a", key="k") == Answer(200, {"item": "A"})
    assert elsewhere.items() == ["a", "finished"]


@pytest.mark.parametrize("added", [False, True])
def test_a_local_step_before_the_others_does_not_run_them_again(elsewhere: Elsewhere, added: bool) -> None:
    """Killed after two local steps whose receipts are in the user's database; then a step is deployed in front of them.
    The journal says which steps there were, so the new code refuses; the old code goes on."""

    def declare(safe: RetrySafe, added: bool, dies: bool) -> Operation:
        op = safe.operation("several")

        def insert(tx: sqlite3.Connection, item: str) -> str:
            tx.execute("INSERT INTO items VALUES (?)", (item,))
            return item

        steps = {}
        for name in ("zero", "one", "two"):

            def step(tx: sqlite3.Connection, item: str) -> str:
                return insert(tx, item)

            step.__name__ = name
            steps[name] = op.local(step)

        @op.body
        def body() -> Answer:
            for name in ("zero", "one", "two") if added else ("one", "two"):
                steps[name](name)
            if dies:
                raise Killed
            return Answer(200, {})

        return op

    op = declare(elsewhere.safe, False, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrysafe.operations.flow.settle_interrupted", lambda *args: iter(()))
        with pytest.raises(Killed):
            op(key="k")
    lapse(elsewhere)
    other = elsewhere.open()
    again = declare(other, added, False)
    if added:
        with pytest.raises(OperationChanged, match="'one' and is now 'zero'"):
            again(key="k")
    else:
        assert again(key="k").status == 200
    other.close()
    assert elsewhere.items() == ["one", "two"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_person_undoes_a_step_that_the_store_was_not_told_of(elsewhere: Elsewhere, committed: bool) -> None:
    """Its receipt is in the user's database, or its owner is still on the way to it: in either case nothing is left.
    The receipt tells whether there is anything to undo, and what the step returned."""
    undone: list[str | None] = []

    def declare(safe: RetrySafe, dies: bool) -> Operation:
        op = safe.operation("undone")

        def remove(tx: sqlite3.Connection, item: str, result: str | None) -> None:
            undone.append(result)
            tx.execute("DELETE FROM items WHERE item = ?", (item,))

        @op.local(undo=remove)
        def insert(tx: sqlite3.Connection, item: str) -> str:
            if dies and not committed:
                raise Killed
            tx.execute("INSERT INTO items VALUES (?)", (item,))
            return f"row of {item}"

        @op.body
        def body() -> Answer:
            insert("a")
            if dies:
                raise Killed
            return Answer(200, {})

        return op

    op = declare(elsewhere.safe, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrysafe.operations.flow.settle_interrupted", lambda *args: iter(()))
        with pytest.raises(Killed):
            op(key="k")
    assert elsewhere.items() == (["a"] if committed else [])
    lapse(elsewhere)
    (record,) = elsewhere.safe.execute(List()).records
    other = elsewhere.open()
    assert declare(other, False).undo_id(record.id, because="cancelled").answer.status == 409
    other.close()
    assert elsewhere.items() == []
    assert undone == (["row of a"] if committed else [])
    (record,) = elsewhere.safe.execute(List()).records
    (entry,) = OperationJournal.decode(record.progress).entries
    assert entry.state == "undone"
    receipts = [step for (step,) in elsewhere.sql("SELECT step FROM retrysafe_receipts")]
    assert "0:insert" in receipts, "an owner that was taken over, and does not know it, finds it blocked"


def test_a_person_undoes_a_step_that_committed_by_itself(elsewhere: Elsewhere) -> None:
    """It has no receipt, and happened all the same."""
    op, undone = elsewhere.safe.operation("committing"), list[str | None]()

    def remove(tx: sqlite3.Connection, item: str, result: str | None) -> None:
        undone.append(result)
        tx.execute("DELETE FROM items WHERE item = ?", (item,))

    @op.local(undo=remove)
    def insert(tx: sqlite3.Connection, item: str) -> str:
        tx.execute("INSERT INTO items VALUES (?)", (item,))
        tx.execute("COMMIT")
        raise ValueError("after the commit")

    @op.body
    def body() -> Answer:
        return Answer(201, insert("a"))

    with pytest.raises(OutcomeUnknown):
        op(key="k")
    (record,) = elsewhere.safe.execute(List()).records
    assert op.undo_id(record.id, because="cancelled").answer.status == 409
    assert (elsewhere.items(), undone) == ([], [None])


def elsewhen(operation: Any) -> Any:
    """As another process runs it: in a context that holds no lease of ours."""
    return Context().run(lambda: operation("a", key="k"))


def test_two_attempts_at_once_leave_one_set_of_writes(elsewhere: Elsewhere) -> None:
    """I16: the receipt's key is the arbiter, also between an owner that was taken over and the next."""
    other = elsewhere.open()
    second: list[Answer] = []

    def meet(step: str) -> None:
        if step == "between" and not second:
            lapse(elsewhere)
            second.append(elsewhen(twin))

    twin = inserting(other)
    op = inserting(elsewhere.safe, meet)
    with pytest.raises(Exception, match="no longer owns it"):
        op("a", key="k")
    assert second == [Answer(200, {"item": "A"})]
    assert elsewhere.items() == ["a", "finished"]
    other.close()


def test_after_an_undo_a_late_owner_cannot_run_its_next_step(elsewhere: Elsewhere) -> None:
    """I24: the attempt that undoes blocks what the other may be about to do."""
    other = elsewhere.open()

    def uninsert(tx: sqlite3.Connection, item: str) -> None:
        tx.execute("DELETE FROM items WHERE item = ?", (item,))

    def undoes(step: str) -> None:
        if step == "call":
            raise Undo(409, {})

    undoer = inserting(other, undoes, undo=uninsert)
    late: list[str] = []

    def meet(step: str) -> None:
        if step == "call" and not late:
            late.append("taken over")
            lapse(elsewhere)
            assert elsewhen(undoer).status == 409
            assert elsewhere.items() == []

    op = inserting(elsewhere.safe, meet, undo=uninsert)
    with pytest.raises(Exception, match="no longer owns it"):
        op("a", key="k")
    assert elsewhere.items() == []
    other.close()


class Died(BaseException):
    """The process ended here."""


def test_an_undo_that_died_before_it_barred_the_late_owner(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I24: it is committed that the operation goes back, and the one that committed it is killed. The next one leaves
    the empty receipt that a late owner of the next local step meets."""

    def undoes(step: str) -> None:
        if step == "call":
            raise Undo(409, {})

    def dies(run: Any, tx: Any) -> Any:
        raise Died

    undoer = inserting(elsewhere.safe, undoes, undo=lambda tx, item: None)
    with monkeypatch.context() as patch:
        patch.setattr("retrysafe.operations.undoing.block_late_steps", dies)
        with pytest.raises(Died):
            undoer("a", key="k")
    lapse(elsewhere)
    assert undoer("a", key="k").status == 409
    barred = [step.partition(":")[2] for (step,) in elsewhere.sql("SELECT step FROM retrysafe_receipts")]
    assert "finish" in barred


class SerializationFailure(Exception):
    sqlstate = "40001"


def fail_to_bar(monkeypatch: pytest.MonkeyPatch, failures: list[Exception]) -> None:
    """The transaction that bars a late owner fails so often, before it goes well."""
    from retrysafe.operations import local

    bar = local.block_late_steps

    def block_late_steps(run: Any, tx: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return bar(run, tx)

    monkeypatch.setattr("retrysafe.operations.undoing.block_late_steps", block_late_steps)


def undoing_everything(safe: RetrySafe) -> Operation:
    def undoes(step: str) -> None:
        if step == "call":
            raise Undo(409, {})

    return inserting(safe, undoes, undo=lambda tx, item: None)


@pytest.mark.parametrize("failure", [SerializationFailure("again"), ConnectionResetError("gone")], ids=str)
def test_a_conflict_while_a_late_owner_is_barred_is_tried_again(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """I24: the late owner's own commit is what it conflicts with."""
    fail_to_bar(monkeypatch, [failure] * 2)
    assert undoing_everything(elsewhere.safe)("a", key="k").status == 409


def test_a_database_that_is_away_while_a_late_owner_is_barred(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is undone before he is barred, in this attempt and in the next. The caller is told so, in our words."""
    failures: list[Exception] = [ConnectionRefusedError("away")] * 100
    fail_to_bar(monkeypatch, failures)
    monkeypatch.setattr("retrysafe.operations.undoing.CONTENTION_DELAYS_SECONDS", (0.0,))
    undoer = undoing_everything(elsewhere.safe)
    for _ in range(2):
        with pytest.raises(OutcomeUnrecorded):
            undoer("a", key="k")
        lapse(elsewhere)
    failures.clear()
    assert undoer("a", key="k").status == 409


def test_stage_is_refused_where_the_outbox_is_not_in_the_users_database(elsewhere: Elsewhere) -> None:
    op = elsewhere.safe.operation("staging")

    @op.local
    def send(tx: Any) -> Answer:
        stage(tx, "t", {})
        return Answer(200, {})

    @op.body
    def body() -> Answer:
        return send()

    with pytest.raises(UsageError, match="not in the database of `tx`"):
        op(key="k")


def test_without_receipt_tables_it_says_what_to_do(tmp_path: Path) -> None:
    safe = RetrySafe("memory://", tx=tmp_path / "bare.db")
    op = inserting(safe)
    with pytest.raises((SchemaMissing, NotFinished), match="no retrysafe tables"):
        op("a", key="k")
    safe.close()


def test_without_tx_there_are_only_foreign_steps() -> None:
    with RetrySafe("memory://") as safe:
        op = inserting(safe)
        with pytest.raises(OperationError, match="was given no `tx`"):
            op("a", key="k")
        foreign = safe.operation("foreign")

        @foreign.foreign
        def call(*, key: str) -> int:
            return 1

        @foreign.body
        def body() -> Answer:
            return Answer(200, {"n": call()})

        assert foreign(key="k").json() == {"n": 1}


def test_receipts_are_sealed(tmp_path: Path) -> None:
    made = Elsewhere(f"memory://{uuid4().hex}", tmp_path, KeyRing({"k": bytes(32)}))
    op = inserting(made.safe)
    assert op("planted-secret", key="k").json() == {"item": "PLANTED-SECRET"}
    stored = " ".join(result for (result,) in made.sql("SELECT result FROM retrysafe_receipts"))
    assert "PLANTED" not in stored
    assert len(stored) > 50
    made.close()
