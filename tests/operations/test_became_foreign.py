"""A local step in a database that is not the store's, which other code declares as a foreign one. It may have been
committed although the store does not know: that code must not send it as well (rule 16, I35). In both forms."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.core.ops import List
from retrysafe.errors import OperationChanged
from retrysafe.operations import Undo
from retrysafe.operations.journal import OperationJournal
from tests.operations.elsewhere import Elsewhere, Killed, die_inside


class Program:
    """The user's code in a process of its own. `charge` is a local step or a foreign one."""

    def __init__(self, elsewhere: Elsewhere, *, local: bool, before: tuple[str, ...] = (), dies_in: str = "") -> None:
        self.dies_in = dies_in
        self.sent: list[str] = []
        self.safe = elsewhere.open()
        self.op = op = self.safe.operation("shop")

        def insert(tx: sqlite3.Connection, item: str) -> str:
            tx.execute("INSERT INTO items VALUES (?)", (item,))
            return item

        def charge_by_row(tx: sqlite3.Connection) -> str:
            return insert(tx, "charge")

        def charge_by_call(*, key: str) -> str:
            self.sent.append(f"charge {key}")
            return "charge"

        def refund_by_row(tx: sqlite3.Connection, result: str) -> None:
            self.meet("undo")

        def refund_by_call(result: str, *, key: str) -> None:
            self.sent.append(f"refund {key}")

        charge_by_row.__name__ = charge_by_call.__name__ = "charge"
        place = op.local(insert)
        charge: Any = (
            op.local(undo=refund_by_row)(charge_by_row) if local else op.foreign(undo=refund_by_call)(charge_by_call)
        )

        @op.body
        def body() -> Answer:
            for item in before:
                place(item)
            charge()
            self.meet("body")
            if self.dies_in == "undo":
                raise Undo(409, "no longer wanted")
            return Answer(200, {})

    def meet(self, where: str) -> None:
        if where == self.dies_in:
            raise Killed

    def __call__(self, key: str = "k") -> Any:
        return self.op(key=key)


BUSY = pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])


@BUSY
@pytest.mark.parametrize("before", [(), ("first",)], ids=["first", "later"])
def test_a_row_that_may_be_committed_is_not_sent_as_a_call(
    elsewhere: Elsewhere, before: tuple[str, ...], busy: bool
) -> None:
    """In a busy process the step is predicted: of the first one only the run's number tells."""
    program = Program(elsewhere, local=True, before=before)
    if busy:
        program("another")
        elsewhere.sql("DELETE FROM items")
    program.dies_in = "body"
    die_inside(elsewhere, program)
    assert elsewhere.items() == [*before, "charge"]
    other = Program(elsewhere, local=False, before=before)
    told = r"'charge' may have been committed as a local step.*foreign.*--because"
    for _ in range(2):  # a refusal does not make the next attempt forget
        with pytest.raises(OperationChanged, match=told):
            other()
    assert other.sent == []
    assert Program(elsewhere, local=True, before=before)().status == 200
    assert elsewhere.items() == [*before, "charge"]


def test_an_undo_that_may_be_committed_is_not_sent_as_a_call(elsewhere: Elsewhere) -> None:
    die_inside(elsewhere, Program(elsewhere, local=True, dies_in="undo"))
    (record,) = elsewhere.safe.execute(List()).records
    assert OperationJournal.decode(record.progress).undoing is not None
    other = Program(elsewhere, local=False)
    with pytest.raises(OperationChanged, match="the undo of 'charge' may have been committed as a local step"):
        other()
    assert other.sent == []


def test_a_person_who_knows_that_nothing_was_committed_says_so(elsewhere: Elsewhere) -> None:
    die_inside(elsewhere, Program(elsewhere, local=True, dies_in="body"))
    (record,) = elsewhere.safe.execute(List()).records
    other = Program(elsewhere, local=False)
    assert other.op.resume_id(record.id, because="the table has no such row").answer.status == 200
    assert len(other.sent) == 1
