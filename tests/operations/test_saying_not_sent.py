"""A person resumes a run. That a step was not sent is said on purpose, and not by giving a reason for the audit."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import List
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.resume_times import compute_backoff
from retrysafe.errors import OperationChanged, OutcomeUnknown
from retrysafe.operations import Operation
from retrysafe.operations.journal import OperationJournal
from retrysafe.operators.errors import Refused
from retrysafe.operators.runs import act_on_run, list_sent_keys
from retrysafe.operators.session import Reason, open_on_safe
from retrysafe.worker.completer import Completer
from tests.operations.test_announcing import Program
from tests.operations.test_open_steps import die_in_pick, keys
from tests.operations.world import World

REASON = Reason("ann", "the customer asks for it")


def declare_printing(safe: RetrySafe, printed: list[str], **options: Any) -> Operation:
    op = safe.operation("labels")

    @op.foreign(repeatable=False, **options)
    def print_label(*, key: str) -> str:
        printed.append(key)
        if len(printed) == 1:
            raise ConnectionError("no answer")
        return "printed"

    @op.body
    def body() -> Answer:
        return Answer(200, {"label": print_label()})

    return op


def resume(safe: RetrySafe, **flags: bool) -> Answer:
    (record,) = [each for each in safe.store.execute(List()).records if "@" in each.target]
    return act_on_run(safe, open_on_safe(safe), record, "resume", REASON, **flags).answer


def test_a_reason_alone_does_not_send_again_what_may_have_happened() -> None:
    printed: list[str] = []
    with RetrySafe("memory://") as safe:
        op = declare_printing(safe, printed)
        with pytest.raises(OutcomeUnknown):
            op(key="k")
        told = r"'print_label' .*may have happened.*--was-not-sent.*keys resolve .*--happened"
        with pytest.raises(Refused, match=told):
            resume(safe)
        assert len(printed) == 1
        assert resume(safe, was_not_sent=True).status == 200
        assert len(printed) == 2


def test_a_step_that_can_be_asked_for_needs_nobodys_word() -> None:
    printed: list[str] = []
    answers: list[str | None] = []

    def find(*, key: str) -> str | None:
        return answers[0] if answers else None

    with RetrySafe("memory://") as safe:
        op = declare_printing(safe, printed, find=find)
        with pytest.raises(OutcomeUnknown):
            op(key="k")
        answers.append("found")
        assert resume(safe).body == b'{"label":"found"}'
        assert len(printed) == 1


@pytest.mark.parametrize("forms", ["previous", "current"])
def test_other_code_is_refused_although_a_reason_is_given(w: World, forms: str) -> None:
    """As `keys why` prints it: the reason is for the audit. The renamed step would be a second charge."""
    die_in_pick(w, ["KEEP", "pick"], forms)
    renamed = Program(w, ["KEEP", "choose"], forms=forms, known=("choose",))
    record = w.record()
    for _ in range(2):
        with pytest.raises(OperationChanged, match=r"--was-not-sent --because"):
            w.run(renamed.op.resume_id(record.id, because="the customer asks for it", not_sent=False))
    assert keys(w, "choose") == set()
    w.run(renamed.op.resume_id(record.id, because="their log has no such key", not_sent=True))
    assert len(keys(w, "choose")) == 1
    renamed.close()


@pytest.mark.parametrize("forms", ["previous", "current"])
@pytest.mark.parametrize("names", [["KEEP", "pick"], ["pack", "pick"]])
def test_the_ledger_has_the_keys_that_were_sent(w: World, forms: str, names: list[str]) -> None:
    """Also of the step that is only announced: an operator searches for it in the other system."""
    die_in_pick(w, names, forms)
    program = Program(w, names, forms=forms)
    record = w.record()
    shown = list_sent_keys(record, OperationJournal.decode(record.progress), program.op)
    assert {f"{call.partition('#')[0]}:{key}" for call, key in shown.items()} == set(w.sent)
    program.close()


def test_a_run_that_other_code_refused_is_due_soon(w: World) -> None:
    """However often its client came to the code that refuses it."""
    die_in_pick(w, ["KEEP", "pick"], "current")
    other = Program(w, ["KEEP", "choose"], forms="current", known=("choose",))
    for _ in range(9):
        with pytest.raises(OperationChanged):
            other()
    other.close()
    assert w.record().attempt == 10
    fits = Program(w, ["KEEP", "pick"], forms="current")
    w.sql(f"UPDATE {w.keys} SET completed = completed - ?", duration_to_micros(compute_backoff(1)))
    assert Completer(fits.safe).run_once().finished == 1
    fits.close()


def test_a_worker_whose_own_code_refuses_a_run_asks_less_and_less_often(w: World) -> None:
    die_in_pick(w, ["KEEP", "pick"], "current")
    other = Program(w, ["KEEP", "choose"], forms="current", known=("choose",))
    completer = Completer(other.safe, grace=0)
    assert completer.run_once().later == 1
    for refusals in range(1, 5):
        assert completer.due_in == compute_backoff(1 + refusals)
        assert completer.run_once().later == 0
        w.sql(f"UPDATE {w.keys} SET completed = completed - ?", duration_to_micros(compute_backoff(1 + refusals)))
        assert completer.run_once().later == 1
    other.close()


def test_the_reason_of_a_cancellation_is_not_told_to_the_client(w: World) -> None:
    die_in_pick(w, ["KEEP", "pick"], "current")
    program = Program(w, ["KEEP", "pick"], forms="current")
    told = w.run(program.op.cancel_id(w.record().id, because="internal: fraud ring 7")).answer
    assert told.status == 409
    assert b"fraud" not in told.body
    program.close()
