"""An operator undoes or resumes a run. What cannot be undone is left only if they say so, and nobody is told that it
was undone; a step that takes keys is sent again with its own key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Answer, Key, RetrySafe
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OutcomeUnknown
from retrysafe.operations import Operation
from retrysafe.operators.errors import Refused
from retrysafe.operators.runs import ActedRun, RunVerb, act_on_run
from retrysafe.operators.session import Reason, open_on_safe

REASON = Reason("ann", "the customer asks for it")


class Stopped(BaseException):
    """Stands for a process that was stopped half way."""


def declare(safe: RetrySafe, sent: list[str], fail: Callable[[], None], **options: Any) -> Operation:
    op = safe.operation("pay", max_attempts=1)

    @op.foreign(tries=1, **options)
    def charge(*, key: str) -> str:
        sent.append(key)
        fail()
        return "ch_1"

    @op.body
    def body() -> Answer:
        return Answer(201, {"charge": charge()})

    return op


def find(safe: RetrySafe) -> Record:
    (record,) = [each for each in safe.store.execute(List()).records if "@" in each.target]
    return record


def act(safe: RetrySafe, verb: RunVerb, **flags: bool) -> ActedRun:
    return act_on_run(safe, open_on_safe(safe), find(safe), verb, REASON, **flags)


def fail_to_connect() -> None:
    raise ConnectionError("no answer")


def stop() -> None:
    raise Stopped


@pytest.mark.parametrize("forms", ["previous", "current"])
@pytest.mark.parametrize("fail", [fail_to_connect, stop])
@pytest.mark.parametrize("repeatable", [True, False])
def test_what_cannot_be_undone_is_left_only_if_the_operator_says_so(
    fail: Callable[[], None], repeatable: bool, forms: Any
) -> None:
    sent: list[str] = []
    with RetrySafe("memory://", forms=forms) as safe:
        op = declare(safe, sent, fail, repeatable=repeatable)
        with pytest.raises((OutcomeUnknown, NotFinished, Stopped)):
            op(key="order-7")
        before = find(safe)
        with pytest.raises(Refused, match=r"'charge'.*no undo.*--leave-effects"):
            act(safe, "undo")
        assert find(safe) == before, "a refusal changes nothing"
        acted = act(safe, "undo", leave_effects=True)
        assert acted.kept == ("charge",)
        assert acted.answer.status == 409
        assert not acted.answer.json()["safe_new_key"], "a client who reads this pays again with a new key"
        assert find(safe).state is State.COMPLETED
        assert op(key="order-7").status == 409


def test_a_run_whose_steps_all_have_an_undo_is_undone_without_a_word() -> None:
    undone: list[Any] = []

    def refund(result: str | None, *, key: str) -> None:
        undone.append(result)

    with RetrySafe("memory://") as safe:
        op = declare(safe, [], fail_to_connect, undo=refund, repeatable=False)
        with pytest.raises(OutcomeUnknown):
            op(key="order-7")
        acted = act(safe, "undo")
        assert (acted.kept, acted.answer.json()["safe_new_key"]) == ((), True)
        assert undone == [None]


# Resume -------------------------------------------------------------------------------------------


def test_a_dead_letter_of_a_repeatable_step_is_resumed_with_its_key() -> None:
    """As the dead letter, `keys why` and the runbook say. The other system recognises the key."""
    sent: list[str] = []
    failures = [fail_to_connect]
    with RetrySafe("memory://") as safe:
        op = declare(safe, sent, lambda: failures.pop()() if failures else None)
        with pytest.raises(OutcomeUnknown, match="gave up"):
            op(key="order-7")
        assert find(safe).note.startswith("dead letter:")
        assert act(safe, "resume").answer.status == 201
        assert len(sent) == 2
        assert len(set(sent)) == 1, "the same key"


def test_from_python_too() -> None:
    sent: list[str] = []
    failures = [fail_to_connect]
    with RetrySafe("memory://") as safe:
        op = declare(safe, sent, lambda: failures.pop()() if failures else None)
        with pytest.raises(OutcomeUnknown, match="gave up"):
            op(key="order-7")
        assert op.resume_id(find(safe).id, because="it is back", not_sent=False).answer.status == 201
        assert len(set(sent)) == 1


def test_a_step_that_was_not_repeatable_when_it_was_sent_is_not_resumed_by_code_that_says_it_is() -> None:
    """What the run itself wrote down counts."""
    sent: list[str] = []
    with RetrySafe("memory://") as safe:
        op = declare(safe, sent, fail_to_connect, repeatable=False)
        with pytest.raises(OutcomeUnknown):
            op(key="order-7")
        later = RetrySafe(safe.store)
        declare(later, sent, lambda: None, repeatable=True)
        with pytest.raises(Refused, match="may have happened"):
            act_on_run(later, open_on_safe(later), find(safe), "resume", REASON)
        assert len(sent) == 1
        record = safe.store.execute(Lookup(Key("order-7", "pay", "operation").id("default"))).record
        assert record is not None
        assert record.state is State.UNCERTAIN
