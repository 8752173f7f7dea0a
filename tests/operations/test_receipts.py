"""When the receipts of local steps go from the user's database: after the end of their operation, and never before."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import List, Lookup, Suspect
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import duration_to_micros
from retrysafe.errors import LeaseLost, NotFinished
from retrysafe.operations import Operation, Undo, receipts
from retrysafe.operations.receipts import (
    BEFORE_ALL,
    KEPT_SECONDS,
    LATE_COMMIT_SECONDS,
    RECORD_ROW,
    can_delete_receipts,
    is_orphan,
    list_named_runs,
)
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.names import build_names
from retrysafe.transactions.base import SQLITE
from retrysafe.worker import Worker
from retrysafe.worker.receipt_reaper import ReceiptReaper, ReceiptReaperCounts
from tests.opening import unique


class Shop:
    """A memory store, and a user's SQLite file with our tables in it."""

    def __init__(self, folder: Path, forms: Any = "current") -> None:
        self.path = folder / f"{unique()}.db"
        store = open_store(f"sqlite:///{self.path}")
        store.migrate()
        store.close()
        self.sql("CREATE TABLE items (item text)")
        self.url = f"memory://{uuid4().hex}"
        self.meet: Callable[[str], None] = lambda step: None
        self.safe = self.open(forms)
        self.op = self.declare(self.safe)

    def open(self, forms: Any = "current") -> RetrySafe:
        return RetrySafe(self.url, tx=self.path, forms=forms)

    def declare(self, safe: RetrySafe) -> Operation:
        op = safe.operation("sell", max_attempts=2)

        def give_back(tx: sqlite3.Connection, item: str) -> None:
            tx.execute("DELETE FROM items WHERE item = ?", (item,))

        @op.local(undo=give_back, tries=1)
        def take(tx: sqlite3.Connection, item: str) -> str:
            tx.execute("INSERT INTO items VALUES (?)", (item,))
            self.meet("take")
            return item

        @op.local(tries=1)
        def pack(tx: sqlite3.Connection, item: str) -> str:
            self.meet("pack")
            return item

        @op.body
        def body(item: str) -> Answer:
            return Answer(200, {"item": pack(take(item))})

        return op

    def sql(self, statement: str) -> list[Any]:
        db = sqlite3.connect(self.path)
        with db:
            found = db.execute(statement).fetchall()
        db.close()
        return found

    def rows(self) -> list[tuple[bytes, str]]:
        return self.sql("SELECT run, step FROM retrysafe_receipts ORDER BY run, step")

    def items(self) -> list[str]:
        return [item for (item,) in self.sql("SELECT item FROM items ORDER BY item")]

    def clear(self, batch: int = 100) -> ReceiptReaperCounts:
        return ReceiptReaper(self.safe, batch).run_once(sleep=lambda seconds: None)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written down happened long enough ago."""
    monkeypatch.setattr(receipts, "KEPT_SECONDS", 0.0)


# Which may go -----------------------------------------------------------------------------------------------------


def ended(shop: Shop) -> Record:
    shop.op("a", key="k")
    (record,) = shop.safe.execute(List()).records
    return record


def test_only_a_run_that_was_completed_long_ago_may_go(shop: Shop) -> None:
    record = ended(shop)
    late = record.completed + duration_to_micros(KEPT_SECONDS)
    assert can_delete_receipts(record, record.run, late)
    assert not can_delete_receipts(record, record.run, late - 1)
    for state in State:
        there = record._replace(state=state)
        assert can_delete_receipts(there, record.run, 10 * late) is (state is State.COMPLETED)
    assert not can_delete_receipts(None, record.run, 10 * late)
    assert not can_delete_receipts(record._replace(run=b"another"), record.run, 10 * late)


def test_an_owner_is_refused_long_before_its_receipts_go() -> None:
    """And both before a store may forget that the operation was completed."""
    from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS

    assert LATE_COMMIT_SECONDS < KEPT_SECONDS
    assert duration_to_micros(KEPT_SECONDS) < KEPT_AFTER_COMPLETION_MICROS


# Going -----------------------------------------------------------------------------------------------------------


def test_receipts_stay_for_a_while_after_the_end(shop: Shop) -> None:
    shop.op("a", key="k")
    assert [step for _, step in shop.rows()] == ["0:pack", "0:take", RECORD_ROW]
    assert shop.clear() == ReceiptReaperCounts(0)
    assert len(shop.rows()) == 3


@pytest.mark.usefixtures("much_later")
def test_those_of_an_ended_operation_go_in_batches(shop: Shop) -> None:
    for number in range(7):
        shop.op(f"item {number}", key=f"k{number}")
    rests: list[float] = []
    assert ReceiptReaper(shop.safe, batch=2).run_once(sleep=rests.append) == ReceiptReaperCounts(7)
    assert len(rests) == 4, "after each of the batches"
    assert shop.rows() == []
    assert shop.clear() == ReceiptReaperCounts(0)
    assert shop.op("item 3", key="k3") == Answer(200, {"item": "item 3"}), "a replay asks for no receipt"
    assert len(shop.items()) == 7


class Dies(BaseException):
    """The process is killed: nothing is written down on the way out."""


def leave(shop: Shop, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that is not over, with one receipt."""

    def fails(step: str) -> None:
        if step == "pack":
            raise Dies if how == "claimed" else ValueError("no paper")

    shop.meet = fails
    if how == "claimed":
        monkeypatch.setattr("retrysafe.operations.flow.settle_interrupted", lambda *args: iter(()))
    with pytest.raises((Dies, NotFinished)):
        shop.op("a", key="k")
    shop.meet = lambda step: None


@pytest.mark.usefixtures("much_later")
@pytest.mark.parametrize("how", ["claimed", "released"])
def test_those_of_an_unfinished_operation_stay_however_old_they_are(
    shop: Shop, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(shop, how, monkeypatch)
    (record,) = shop.safe.execute(List()).records
    assert record.state.value == how
    shop.sql("UPDATE retrysafe_receipts SET created = 1")
    before = shop.rows()
    assert [step for _, step in before] == ["0:take", RECORD_ROW]
    shop.op("b", key="k2")
    assert shop.clear(batch=1) == ReceiptReaperCounts(1), "the one behind it goes"
    assert shop.rows() == before
    if how == "released":
        assert shop.op("a", key="k") == Answer(200, {"item": "a"})
        assert shop.items() == ["a", "b"], "it was found, and not run again"
        assert shop.clear() == ReceiptReaperCounts(1)


@pytest.mark.usefixtures("much_later")
def test_those_of_a_dead_letter_stay(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(shop, "claimed", monkeypatch)
    (record,) = shop.safe.execute(List()).records
    assert shop.safe.execute(Suspect(record.id, record.fence, "nobody knows"))
    assert shop.clear() == ReceiptReaperCounts(0)
    assert len(shop.rows()) == 2


@pytest.mark.usefixtures("much_later")
def test_what_bars_a_late_owner_goes_with_the_rest(shop: Shop) -> None:
    def undoes(step: str) -> None:
        if step == "pack":
            raise Undo(409, {})

    shop.meet = undoes
    assert shop.op("a", key="k").status == 409
    assert shop.items() == []
    assert [step for _, step in shop.rows()] == ["0:pack", "0:take", "0:take:undo", "1:take", RECORD_ROW]
    assert shop.clear() == ReceiptReaperCounts(1)
    assert shop.rows() == []


@pytest.mark.usefixtures("much_later")
def test_what_another_store_knows_is_left_alone(shop: Shop, tmp_path: Path) -> None:
    """Two applications with a store each, and one database: neither sees the other's records (rule 15)."""
    shop.op("a", key="k")
    other = RetrySafe(f"memory://{uuid4().hex}", tx=shop.path, forms="current")
    again = shop.declare(other)
    assert ReceiptReaper(other).run_once() == ReceiptReaperCounts(0, orphaned=1)
    again("b", key="k")
    assert ReceiptReaper(other).run_once() == ReceiptReaperCounts(1, orphaned=1), (
        "the same key in its own store is another run"
    )
    assert len(shop.rows()) == 3
    other.close()
    assert shop.clear() == ReceiptReaperCounts(1)


@pytest.mark.usefixtures("much_later")
def test_what_this_code_cannot_read_is_left_alone(shop: Shop) -> None:
    shop.op("a", key="k")
    shop.sql(f"UPDATE retrysafe_receipts SET result = '2:' || result WHERE step = '{RECORD_ROW}'")
    assert shop.clear() == ReceiptReaperCounts(0, orphaned=1)
    assert len(shop.rows()) == 3


def test_the_old_ones_are_found_by_an_index(shop: Shop) -> None:
    statement = next(list_named_runs(SQLITE, build_names(), BEFORE_ALL, 10))
    db = sqlite3.connect(shop.path)
    plan = db.execute(f"EXPLAIN QUERY PLAN {statement.sql}", {**statement.values, "now": 1}).fetchall()
    db.close()
    assert ["USING INDEX retrysafe_named" in str(line) for line in plan] == [True]


# Beside others ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("much_later")
def test_who_dies_between_two_batches_leaves_whole_runs(shop: Shop) -> None:
    for number in range(4):
        shop.op(f"item {number}", key=f"k{number}")

    def dies(seconds: float) -> None:
        raise Dies

    with pytest.raises(Dies):
        ReceiptReaper(shop.safe, batch=2).run_once(sleep=dies)
    assert [step for _, step in shop.rows()] == ["0:pack", "0:take", RECORD_ROW] * 2
    assert shop.clear() == ReceiptReaperCounts(2)


@pytest.mark.usefixtures("much_later")
def test_who_dies_in_the_middle_of_a_batch_has_deleted_nothing_of_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        shop.op(f"item {number}", key=f"k{number}")
    before, deleted = shop.rows(), []
    ask = receipts.run_receipt_statement

    def dies(statements: Any, name: str, values: Any) -> Any:
        if name == "receipt_run_delete":
            if deleted:
                raise Dies
            deleted.append(values)
        return (yield from ask(statements, name, values))

    with monkeypatch.context() as patch:
        patch.setattr(receipts, "run_receipt_statement", dies)
        with pytest.raises(Dies):
            shop.clear()
    assert shop.rows() == before
    assert shop.clear() == ReceiptReaperCounts(3)


@pytest.mark.usefixtures("much_later")
def test_two_at_once(shop: Shop) -> None:
    """Both have seen the same runs before either deletes: the second finds nothing to do, and nothing is wrong."""
    shop.op("a", key="k")
    both = [ReceiptReaper(shop.safe).tick_flow() for _ in range(2)]
    asked = [next(story) for story in both]
    listed = [effect.function() for effect in asked]
    lookups = [story.send(found) for story, found in zip(both, listed, strict=True)]
    deletions = [story.send(shop.safe.store.execute(effect.op)) for story, effect in zip(both, lookups, strict=True)]
    for effect in deletions:
        effect.function()
    assert shop.rows() == []


@pytest.mark.usefixtures("much_later")
def test_in_threads_while_operations_run(shop: Shop) -> None:
    """Several clear while others sell: everything was sold once, and nothing that is needed is gone."""
    stop, problems = threading.Event(), []

    def clearing() -> None:
        while not stop.is_set():
            try:
                shop.clear(batch=3)
            except Exception as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=clearing) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            for _ in range(2):
                assert shop.op(f"{number:02}", key=f"k{number}").status == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert problems == []
    assert shop.items() == [f"{number:02}" for number in range(20)]
    shop.clear()
    assert shop.rows() == []


# A late owner ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_an_owner_that_was_paused_for_very_long_commits_nothing(
    shop: Shop, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only one that still needs a receipt, and find none any more."""
    asked = receipts.clock()

    def paused(step: str) -> None:
        # Its lease has been over for as long as an owner may be late, or longer.
        over = asked + 60 + LATE_COMMIT_SECONDS + 60 if late else asked + 60 + LATE_COMMIT_SECONDS - 60
        monkeypatch.setattr(receipts, "clock", lambda: over)

    shop.meet = paused
    if late:
        with pytest.raises(LeaseLost):
            shop.op("a", key="k")
        assert shop.items() == []
        assert shop.rows() == []
    else:
        assert shop.op("a", key="k").status == 200


# Forms, and the worker ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("much_later")
def test_in_the_forms_of_the_release_before_nothing_is_added_and_nothing_goes(tmp_path: Path) -> None:
    """That release knows no LATE_COMMIT_SECONDS: while one of its processes may be late, its receipts stay."""
    shop = Shop(tmp_path, forms="previous")
    shop.op("a", key="k")
    assert [step for _, step in shop.rows()] == ["0:take", "1:pack"]
    assert "receipts" not in Worker(shop.safe).run_once().counts
    assert len(shop.rows()) == 2
    shop.safe.close()


@pytest.mark.usefixtures("much_later")
def test_a_run_of_the_older_forms_that_is_gone_on_with_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, forms="previous")
    leave(shop, "released", monkeypatch)
    assert [step for _, step in shop.rows()] == ["0:take"]
    newer = shop.open()
    assert shop.declare(newer)("a", key="k").status == 200
    assert RECORD_ROW in [step for _, step in shop.rows()]
    assert ReceiptReaper(newer).run_once() == ReceiptReaperCounts(1)
    assert shop.rows() == []
    newer.close()
    shop.safe.close()


@pytest.mark.usefixtures("much_later")
def test_the_worker_does_it(shop: Shop) -> None:
    shop.op("a", key="k")
    done = Worker(shop.safe).run_once()
    assert done.healthy
    assert done.counts["receipts"] == ReceiptReaperCounts(1)
    assert shop.rows() == []


@pytest.mark.parametrize("without", ["steps", "tables", "connections"])
def test_where_there_is_nothing_to_clear_it_says_nothing(without: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    tx: Any = tmp_path / "bare.db" if without == "tables" else shop.path
    with sqlite3.connect(shop.path) as db:
        safe = RetrySafe("memory://", tx=db if without == "connections" else tx, forms="current")
        if without != "steps":
            shop.declare(safe)
        done = Worker(safe).run_once()
        assert done.healthy
        assert done.counts["receipts"] == ReceiptReaperCounts(0)
        safe.close()
    db.close()
    shop.safe.close()


def test_where_the_store_is_the_users_database_there_are_none(tmp_path: Path) -> None:
    with RetrySafe(f"sqlite:///{tmp_path}/a.db", tx=tmp_path / "a.db", forms="current") as safe:
        safe.migrate()
        assert "receipts" not in Worker(safe).run_once().counts


def test_an_orphan_is_one_the_store_knows_nothing_of(shop: Shop) -> None:
    record = ended(shop)
    found = shop.safe.execute(Lookup(record.id)).record
    assert not is_orphan(found, record.run)
    assert is_orphan(found, b"another")
    assert is_orphan(None, record.run)
