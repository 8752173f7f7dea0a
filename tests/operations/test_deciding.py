"""The person who decides about an operation: what the ledger says, resume, undo, and an answer by hand."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer, Undo
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import NotUncertain, OutcomeUnknown, UsageError
from retrysafe.operations.journal import describe_next_step
from tests.operations.world import World


class Print:
    """An order that is charged, and a label that must not be printed twice."""

    def __init__(self, w: World, find: Any = None) -> None:
        self.w = w
        self.fail: list[BaseException] = []
        self.printed: list[str] = []
        self.undone: list[str] = []
        op = self.op = w.safe.operation("labels")

        def refund(result: Any, key: str) -> None:
            self.undone.append(f"refund {result}")

        def unprint(result: Any, key: str) -> None:
            self.undone.append(f"unprint {result}")

        @w.foreign(op, undo=w.in_mode(refund))
        def charge(*, key: str) -> str:
            return "ch_1"

        @w.foreign(op, repeatable=False, find=None if find is None else w.in_mode(find), undo=w.in_mode(unprint))
        def label(*, key: str) -> str:
            self.printed.append(key)
            if self.fail:
                raise self.fail.pop(0)
            return f"label {len(self.printed)}"

        @w.body(op)
        def body() -> Answer:
            yield charge
            made = yield label
            return Answer(201, {"label": made})

    def __call__(self) -> Any:
        return self.w.run(self.op(key="k"))


def stuck(w: World, find: Any = None) -> tuple[Print, Record]:
    labels = Print(w, find)
    labels.fail = [ConnectionError("down")]
    with pytest.raises(OutcomeUnknown):
        labels()
    assert w.state() is State.UNCERTAIN
    return labels, w.record()


def test_the_ledger_names_the_step_and_what_comes_next(w: World) -> None:
    _, record = stuck(w)
    journal = w.journal()
    assert describe_next_step(journal, record.point) == "label (may have been sent)"
    assert [(entry.step, entry.state, "down" in entry.error) for entry in journal.entries] == [
        ("charge", "done", False),
        ("label", "begun", True),
    ]


def test_going_on_needs_a_reason(w: World) -> None:
    labels, record = stuck(w)
    with pytest.raises(OutcomeUnknown):
        w.run(labels.op.resume_id(record.id))
    ended = w.run(labels.op.resume_id(record.id, because="the printer is empty"))
    assert ended.answer == Answer(201, {"label": "label 2"})
    assert len(labels.printed) == 2


def test_a_find_that_fails_leaves_it_unknown(w: World) -> None:
    """If this counted as "it did not happen", a second label would be printed."""
    broken: list[BaseException] = [ConnectionError("their search is down")] * 3

    def find(*, key: str) -> str | None:
        if broken:
            raise broken.pop()
        return "label 1"

    labels, record = stuck(w, find)
    with pytest.raises(OutcomeUnknown, match="`find` failed with ConnectionError"):
        w.run(labels.op.resume_id(record.id, because="I do not see it"))
    assert (len(labels.printed), w.state()) == (1, State.UNCERTAIN)
    broken.clear()
    ended = w.run(labels.op.resume_id(record.id, because="their search is back"))
    assert (ended.answer.json(), len(labels.printed)) == ({"label": "label 1"}, 1)


def test_undoing_by_hand(w: World) -> None:
    labels, record = stuck(w)
    with pytest.raises(UsageError, match="because"):
        w.run(labels.op.undo_id(record.id, because=" "))
    ended = w.run(labels.op.undo_id(record.id, because="the customer cancelled"))
    assert ended.answer.status == 409
    assert labels.undone == ["unprint None", "refund ch_1"]
    assert (w.state(), w.journal().cause) == (State.COMPLETED, "the customer cancelled")
    assert w.run(labels.op.undo_id(record.id, because="again")).replayed
    assert len(labels.undone) == 2


def test_an_answer_by_hand(w: World) -> None:
    labels, record = stuck(w)
    after = w.safe.resolve(record.id, happened=True, answer=Answer(201, {"label": "by hand"}), because="on my desk")
    assert after.state is State.COMPLETED
    assert labels() == Answer(201, {"label": "by hand"})
    with pytest.raises(NotUncertain):
        w.safe.resolve(record.id, happened=False, because="oh")
    assert len(labels.printed) == 1


def test_an_undo_that_is_stuck_does_not_outlive_its_key(w: World) -> None:
    """The refund may have been carried out when it was first sent: a day later the provider has forgotten its key."""
    op = w.safe.operation("refunding")
    refunds: list[str] = []
    failing = [True]

    def refund(result: Any, key: str) -> None:
        refunds.append(key)
        if failing:
            raise ConnectionError("no answer")

    @w.foreign(op, undo=w.in_mode(refund))
    def charge(*, key: str) -> str:
        return "ch_1"

    @w.body(op)
    def body() -> Answer:
        yield charge
        raise Undo(409, {})

    with pytest.raises(OutcomeUnknown):
        w.run(op(key="k"))
    sent = len(refunds)
    assert (w.states(), sent) == ({"charge": "stuck"}, 4)
    failing.clear()
    w.age(90_000)
    with pytest.raises(OutcomeUnknown):
        w.run(op.resume_id(w.record().id, because="they are back"))
    assert (len(refunds), w.states()) == (sent, {"charge": "stuck"})
    told = w.journal().entries[0].error
    assert ("older than key_life" in told, "retrysafe keys resolve" in told) == (True, True)
    w.safe.resolve(w.record().id, happened=True, answer=Answer(409, {}), because="refunded by hand")
    assert w.run(op(key="k")).status == 409
    assert len(refunds) == sent


def test_a_person_undoes_a_step_that_committed_by_itself(w: World) -> None:
    """Its writes are in the database. The ledger names the step, and the undo comes to it."""
    op, undone = w.safe.operation("committing"), list[Any]()

    def refund(result: str, key: str) -> None:
        undone.append(f"refund of {result}")

    def remove(tx: Any, item: str, result: Any) -> Any:
        undone.append(result)
        yield lambda: tx.execute(w.q(f"DELETE FROM {w.orders} WHERE item = ?"), (item,))

    @w.foreign(op, undo=w.in_mode(refund))
    def charge(*, key: str) -> str:
        return "ch"

    @w.local(op, undo=w.in_mode(remove))
    def enter(tx: Any, item: str) -> str:
        yield from w.insert(tx, item)
        yield lambda: tx.execute("COMMIT")
        raise ValueError("after the commit")

    @w.body(op)
    def body() -> Answer:
        yield charge
        yield lambda: enter("tea")
        return Answer(201, {})

    with pytest.raises(OutcomeUnknown):
        w.run(op(key="k"))
    assert (w.items(), w.states()) == (["tea"], {"charge": "done", "enter": "begun"})
    assert "at 'enter'" in w.record().note
    assert w.run(op.undo_id(w.record().id, because="cancelled")).answer.status == 409
    assert (w.items(), undone) == ([], [None, "refund of ch"])
