"""A refusal changes nothing, and a body that catches it does not go on (rule 16, I35)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import List
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OperationChanged, OutcomeUnknown
from retrysafe.operations import Operation
from retrysafe.operations.journal import OperationJournal
from retrysafe.transactions import on_sqlite3
from tests.operations.elsewhere import Elsewhere
from tests.operations.test_announcing import Program
from tests.operations.test_service_changed import Failing
from tests.operations.world import World


def declare(safe: RetrySafe, name: str, sent: list[str], *, kind: str = "foreign", **options: Any) -> Operation:
    op = safe.operation("labels")

    def call(*, key: str) -> str:
        sent.append(key)
        raise ConnectionError("no answer")

    def write(tx: Any) -> str:
        sent.append("row")
        return "row"

    call.__name__ = write.__name__ = name
    step: Any = op.foreign(**options)(call) if kind == "foreign" else op.local(write)

    @op.body
    def body() -> Answer:
        return Answer(200, {"label": step()})

    return op


def resume(op: Operation, record_id: bytes) -> Any:
    return op.resume_id(record_id, because="the customer asks", not_sent=False)


def undo(op: Operation, record_id: bytes) -> Any:
    return op.undo_id(record_id, because="the customer asks")


@pytest.mark.parametrize(
    ("act", "name", "options"),
    [
        pytest.param(resume, "print_anew", {"repeatable": False}, id="resume, renamed"),
        pytest.param(resume, "print_label", {"repeatable": True}, id="resume, repeatable now"),
        pytest.param(resume, "print_label", {"kind": "local"}, id="resume, local now"),
        pytest.param(undo, "print_anew", {"repeatable": False}, id="undo, renamed"),
    ],
)
def test_a_run_of_unknown_outcome_stays_so(act: Any, name: str, options: dict[str, Any]) -> None:
    """An operator resumes or undoes it with other code, and says nothing of what was sent."""
    sent: list[str] = []
    with RetrySafe("memory://") as safe:
        with pytest.raises(OutcomeUnknown):
            declare(safe, "print_label", sent, repeatable=False)(key="k")
        (record,) = safe.store.execute(List()).records
        safe.operations.clear()
        other = declare(safe, name, sent, **options)
        with pytest.raises((OperationChanged, OutcomeUnknown)):
            act(other, record.id)
        (after,) = safe.store.execute(List()).records
        assert (after.state, after.attempt) == (State.UNCERTAIN, record.attempt)
        assert len(sent) == 1


@pytest.mark.parametrize("forms", ["previous", "current"])
def test_a_body_that_catches_a_refusal_does_not_go_on(w: World, forms: str) -> None:
    """`pick` was begun. The next version calls another step first, catches the refusal, and calls `pick`."""
    begins = Failing(w, ["pick"], forms=forms)
    with pytest.raises(NotFinished):
        begins()
    begins.close()
    sent = list(w.sent)

    def story(steps: dict[str, Any]) -> Any:
        with suppress(Exception):
            yield steps["pack"]
        yield steps["pick"]
        return Answer(200, {})

    other = Program(w, [], forms=forms, story=story)
    with pytest.raises(OperationChanged):
        other()
    assert w.sent == sent
    other.close()


def test_a_stop_right_after_the_commit_leaves_the_step_in_doubt(elsewhere: Elsewhere) -> None:
    """Its row is in the user's database, and the store was not told: nobody may take it for not happened."""

    def declare_row(safe: RetrySafe, local: bool, sent: list[str]) -> Operation:
        op = safe.operation("rows")

        def write(tx: sqlite3.Connection) -> str:
            tx.execute("INSERT INTO items VALUES ('charge')")
            return "row"

        def call(*, key: str) -> str:
            sent.append(key)
            return "call"

        write.__name__ = call.__name__ = "charge"
        charge: Any = op.local(write) if local else op.foreign(call)

        @op.body
        def body() -> Answer:
            return Answer(200, {"by": charge()})

        return op

    sent: list[str] = []
    op = declare_row(elsewhere.safe, True, sent)
    op(key="before")  # a process that has seen which step comes first
    elsewhere.sql("DELETE FROM items")

    original = on_sqlite3.begin_on_connection

    @contextmanager
    def begin(given: sqlite3.Connection) -> Iterator[Any]:
        with original(given) as tx:
            yield tx
        raise KeyboardInterrupt  # as a signal that arrives at this moment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_sqlite3, "begin_on_connection", begin)
        with pytest.raises(KeyboardInterrupt):
            op(key="k")
    assert elsewhere.items() == ["charge"]
    (record,) = [each for each in elsewhere.safe.execute(List()).records if each.key == "k"]
    assert OperationJournal.decode(record.progress).left == 0
    other = elsewhere.open()
    with pytest.raises(OperationChanged, match="may have been committed as a local step"):
        declare_row(other, False, sent)(key="k")
    other.close()
    assert sent == []
    again = elsewhere.open()
    assert declare_row(again, True, sent)(key="k").status == 200
    again.close()
    assert elsewhere.items() == ["charge"]
