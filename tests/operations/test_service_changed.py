"""`service=` of a foreign step is part of its key. Code that declares another one does not send under another key what
may have been sent (rule 16): it refuses, sends nothing, and the code that began the run finishes it. In both forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OperationChanged, OutcomeUnknown
from retrysafe.operations import Undo
from retrysafe.operations.announcing import HEAD_BYTES, announce_in, read_announcement
from retrysafe.operations.journal import BY_CALL, UNNAMED, OperationJournal, describe_next_step
from tests.operations.test_announcing import Program, finishes, refuses
from tests.operations.test_open_steps import FORMS, calls, die_in_pick, keys, undo
from tests.operations.world import World

SERVICES = [("stripe", "adyen"), ("", "adyen"), ("stripe", "")]
BUSY = pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])


def rewrite(w: World, change: Callable[[OperationJournal], OperationJournal]) -> None:
    w.sql(f"UPDATE {w.keys} SET progress = ?", change(w.journal()).encode())


@BUSY
@pytest.mark.parametrize("names", [["pick", "pack"], ["KEEP", "pick"], ["pack", "pick"]])
@pytest.mark.parametrize(("first", "then"), SERVICES)
@pytest.mark.parametrize("forms", FORMS)
def test_killed_inside_the_step(w: World, forms: str, first: str, then: str, names: list[str], busy: bool) -> None:
    """Nothing is in the journal but the announcement, or nothing at all but the run's number."""
    die_in_pick(w, names, forms, busy, service=first)
    refuses(w, Program(w, names, forms=forms, service=then), "may have been sent")
    finishes(w, Program(w, names, forms=forms, service=first))
    assert len(keys(w, "pick")) == 1


AGREEING_HEAD = (92_152).to_bytes(11, "big")
"""With these random bytes in the run's number, the digest of 'pick' for stripe is that of 'pack' for adyen, too."""


@pytest.fixture
def digests_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of two versions of the code have one digest, as one time in 65,536 (decision 65)."""

    def announce(run: bytes, step: str, service: str | None) -> bytes:
        return announce_in(AGREEING_HEAD + run[HEAD_BYTES:], step, service)

    number = announce(bytes(16), "pick", "stripe")
    assert read_announcement(number, {"pick": "stripe", "pack": "stripe"}) == ("pick", True)
    assert read_announcement(number, {"pick": "adyen", "pack": "adyen"}) == ("pack", True)
    monkeypatch.setattr("retrysafe.operations.operation.announce_in", announce)


@pytest.mark.parametrize("other", [["pick", "pack"], ["ALSO", "pick", "pack"], ["pick"]], ids=["same", "more", "less"])
@pytest.mark.parametrize("forms", FORMS)
def test_other_code_that_reads_another_step_from_the_run_s_number(
    w: World, digests_agree: None, forms: str, other: list[str]
) -> None:
    """It refuses, and does not write down the name that it has read: the code that began the run reads its own."""
    die_in_pick(w, ["pick", "pack"], forms, busy=True, service="stripe")
    assert w.record().progress == b""
    refuses(w, Program(w, other, forms=forms, service="adyen"), "'pack' may have been sent")
    finishes(w, Program(w, ["ALSO", "pick", "pack"] if w.items() else ["pick", "pack"], forms=forms, service="stripe"))
    assert (len(keys(w, "pick")), len(keys(w, "pack"))) == (1, 1)


def test_what_other_code_sends_is_named_beside_what_it_has_read(w: World, digests_agree: None) -> None:
    """Its own step may have been sent, and so may the step that began the run: both stay open."""
    die_in_pick(w, ["pick", "pack"], "current", busy=True, service="stripe")
    Program(w, ["ALSO", "pack"], dies="pack", forms="current", service="adyen").die()
    assert (w.journal().announced, w.journal().unmet) == ("pack", (UNNAMED,))
    assert w.journal().services == {"pack": "adyen"}
    refuses(w, Program(w, ["ALSO", "pack", "pick"], forms="current", service="stripe"), "'pack' .*'adyen'.*'stripe'")
    assert w.journal().unmet == (UNNAMED, "pack")
    assert describe_next_step(w.journal(), "ALSO") == "the first step, pack (may have been sent)"


@pytest.mark.parametrize("forms", FORMS)
def test_the_refusal_names_both_services(w: World, forms: str) -> None:
    die_in_pick(w, ["KEEP", "pick"], forms, service="stripe")
    refuses(w, Program(w, ["KEEP", "pick"], forms=forms, service="adyen"), "'pick' .*'stripe'.*'adyen'.*--because")


def test_a_local_step_that_comes_first_does_not_hide_it(w: World) -> None:
    """The step stays open over that commit, with the service that it may have been sent for."""
    die_in_pick(w, ["KEEP", "pick"], "current", service="stripe")
    other = Program(w, ["KEEP", "ALSO", "pick"], forms="current", service="adyen")
    refuses(w, other, "'pick' may have been sent")
    assert w.items() == ["KEEP", "ALSO"]
    assert w.journal().services == {"pick": "stripe"}
    finishes(w, Program(w, ["KEEP", "ALSO", "pick"], forms="current", service="stripe"))
    assert len(keys(w, "pick")) == 1


class Local(Program):
    """Code that declares every step as a local one."""

    def is_local(self, name: str) -> bool:
        return True


@BUSY
@pytest.mark.parametrize("names", [["KEEP", "pick"], ["pick", "pack"]], ids=["later", "first"])
@pytest.mark.parametrize("forms", FORMS)
def test_a_step_that_became_local_is_not_taken_for_the_one_that_may_have_been_sent(
    w: World, forms: str, names: list[str], busy: bool
) -> None:
    """Also the first one, of which only the run's number tells."""
    die_in_pick(w, names, forms, busy)
    kept = w.items()
    refuses(w, Local(w, names, forms=forms), "'pick' may have been sent.*local step.*--because")
    assert w.items() == kept
    finishes(w, Program(w, names, forms=forms))
    assert len(keys(w, "pick")) == 1


class Failing(Program):
    """The step is sent, and its reply is lost."""

    def met(self, name: str) -> str:
        if name == "pick":
            raise ConnectionError("no answer")
        return name


@pytest.mark.parametrize(("first", "then"), SERVICES)
@pytest.mark.parametrize("forms", FORMS)
def test_a_begun_step(w: World, forms: str, first: str, then: str) -> None:
    begins = Failing(w, ["KEEP", "pick"], forms=forms, service=first)
    with pytest.raises(NotFinished):
        begins()
    begins.close()
    assert w.states()["pick"] == "begun"
    refuses(w, Program(w, ["KEEP", "pick"], forms=forms, service=then), "may have been sent")
    finishes(w, Program(w, ["KEEP", "pick"], forms=forms, service=first))
    assert len(keys(w, "pick")) == 1


@pytest.mark.parametrize("forms", FORMS)
def test_a_step_that_may_not_be_repeated(w: World, forms: str) -> None:
    """A person says that it was not sent: only then does it go out under the other key."""
    begins = Failing(w, ["KEEP", "pick"], forms=forms, service="stripe", repeatable=False)
    with pytest.raises(OutcomeUnknown):
        begins()
    begins.close()
    w.safe.resolve(w.record().id, happened=False, because="their log has no such key")
    other = Program(w, ["KEEP", "pick"], forms=forms, service="adyen", repeatable=False)
    with pytest.raises(OperationChanged, match="may have been sent"):
        w.run(other.op.resume(w.record()))
    assert (w.state(), len(keys(w, "pick"))) == (State.UNCERTAIN, 1)
    assert w.run(other.op.resume_id(w.record().id, because="still no such key")).answer.status == 200
    other.close()
    assert len(keys(w, "pick")) == 2


@pytest.mark.parametrize("forms", FORMS)
def test_what_is_over_may_have_had_another_service(w: World, forms: str) -> None:
    die_in_pick(w, ["pack", "KEEP", "pick"], forms, service="stripe")
    rewrite(w, lambda journal: journal.replace(announced="", unmet=()))
    w.sent.clear()
    finishes(w, Program(w, ["pack", "KEEP", "pick"], forms=forms, service="adyen"))
    assert calls(w) == ["pick"]


@pytest.mark.parametrize("forms", FORMS)
def test_what_was_announced_and_not_sent_may_change(w: World, forms: str) -> None:
    """The first process predicted the step and stopped before it. The code that sends it writes down its own
    service."""
    first = Program(w, ["KEEP", "pick"], forms=forms, service="stripe")
    first.finish_one_before()

    def stop_early() -> Any:
        yield first.steps["KEEP"]
        raise ZeroDivisionError

    first.op._body = w.in_mode(stop_early)
    with pytest.raises(NotFinished):
        first()
    first.close()
    assert (w.journal().announced, w.journal().services) == ("pick", {"pick": "stripe"})
    Program(w, ["KEEP", "pick"], dies="pick", forms=forms, service="adyen").die()
    refuses(w, Program(w, ["KEEP", "pick"], forms=forms, service="stripe"), "may have been sent")
    finishes(w, Program(w, ["KEEP", "pick"], forms=forms, service="adyen"))
    assert len(keys(w, "pick")) == 1


@pytest.mark.parametrize("forms", FORMS)
def test_a_person_says_that_it_was_not_sent(w: World, forms: str) -> None:
    die_in_pick(w, ["KEEP", "pick"], forms, service="stripe")
    other = Program(w, ["KEEP", "pick"], forms=forms, service="adyen")
    with pytest.raises(OperationChanged, match="--because"):
        w.run(other.op.resume_id(w.record().id))
    assert w.run(other.op.resume_id(w.record().id, because="their log has no such key")).answer.status == 200
    other.close()
    assert calls(w) == ["pick", "pick"]


@pytest.mark.parametrize("forms", FORMS)
def test_what_a_person_said_counts_only_where_the_step_was_sent(w: World, forms: str) -> None:
    """The body failed before it called the step: the next attempt finds the service that the step was begun with."""
    begins = Failing(w, ["KEEP", "pick"], forms=forms, service="stripe")
    with pytest.raises(NotFinished):
        begins()
    begins.close()

    def fails(steps: dict[str, Any]) -> Any:
        yield steps["KEEP"]
        raise ZeroDivisionError

    other = Program(w, ["KEEP", "pick"], forms=forms, service="adyen", story=fails)
    with pytest.raises(NotFinished):
        w.run(other.op.resume_id(w.record().id, because="their log has no such key"))
    other.close()
    refuses(w, Program(w, ["KEEP", "pick"], forms=forms, service="adyen"), "may have been sent")
    finishes(w, Program(w, ["KEEP", "pick"], forms=forms, service="stripe"))
    assert len(keys(w, "pick")) == 1


# Undos -------------------------------------------------------------------------------------------


class Refunding:
    """A charge that is undone. Its refund is sent, and the reply may be lost."""

    def __init__(self, w: World, forms: str, service: str, refunds: list[str], fails: bool = False) -> None:
        self.w, self.safe = w, RetrySafe(w.url, tx=w.safe.tx, forms=forms)  # type: ignore[arg-type]
        self.op = self.safe.operation("refunding")

        def refund(*, key: str) -> None:
            refunds.append(key)
            if fails:
                raise ConnectionError("no answer")

        @w.foreign(self.op, undo=w.in_mode(refund), service=service)
        def charge(*, key: str) -> str:
            return "charged"

        @w.body(self.op)
        def body() -> Any:
            yield charge
            raise Undo(502, {})

    def close(self) -> None:
        if self.w.loop is not None:
            self.w.loop.run(self.safe.aclose())
        else:
            self.safe.close()


@pytest.mark.parametrize(("first", "then"), SERVICES)
@pytest.mark.parametrize("forms", FORMS)
def test_an_undo_that_may_have_been_sent(w: World, forms: str, first: str, then: str) -> None:
    """Its key has the service in it as well: under another key it would be a second refund."""
    refunds: list[str] = []
    begins = Refunding(w, forms, first, refunds, fails=True)
    with pytest.raises(OutcomeUnknown):
        w.run(begins.op(key="k"))
    begins.close()
    assert w.states() == {"charge": "stuck"}
    w.safe.resolve(w.record().id, happened=False, because="try the refund again")
    tried = len(refunds)
    other = Refunding(w, forms, then, refunds)
    for _ in range(2):
        with pytest.raises(OperationChanged, match="undo of 'charge' may have been sent"):
            w.run(other.op.resume(w.record()))
        assert (w.state(), len(refunds)) == (State.RELEASED, tried)
    other.close()
    same = Refunding(w, forms, first, refunds)
    assert w.run(same.op.resume(w.record())).answer.status == 502
    same.close()
    assert len(set(refunds)) == 1


@pytest.mark.parametrize("forms", FORMS)
def test_a_person_says_that_the_undo_was_not_sent(w: World, forms: str) -> None:
    refunds: list[str] = []
    begins = Refunding(w, forms, "stripe", refunds, fails=True)
    with pytest.raises(OutcomeUnknown):
        w.run(begins.op(key="k"))
    begins.close()
    other = Refunding(w, forms, "adyen", refunds)
    assert w.run(other.op.resume_id(w.record().id, because="no refund in their log")).answer.status == 502
    other.close()
    assert len(set(refunds)) == 2


@pytest.mark.parametrize("forms", FORMS)
def test_an_undo_that_was_not_sent_yet_goes_out_once(w: World, forms: str) -> None:
    """Of a step that was done for another service: its undo has one key, that of the code that sends it."""
    die_in_pick(w, ["pack", "KEEP", "pick"], forms, service="stripe")
    rewrite(w, lambda journal: journal.replace(announced="", unmet=()))
    w.sent.clear()
    assert undo(w, Program(w, ["pack", "KEEP", "pick"], forms=forms, service="adyen")).status == 409
    assert len(keys(w, "undo pack pack")) == 1


# Runs that were begun before services were written down ------------------------------------------


@pytest.mark.parametrize("names", [["pick", "pack"], ["KEEP", "pick"]])
@pytest.mark.parametrize("forms", FORMS)
def test_runs_of_older_code_go_on(w: World, forms: str, names: list[str]) -> None:
    """They carry the step's name and no service: the present code continues."""
    die_in_pick(w, names, forms, service="stripe")
    rewrite(w, lambda journal: replace(journal, services={}))
    finishes(w, Program(w, names, forms=forms, service="stripe"))
    assert len(keys(w, "pick")) == 1


def test_a_journal_keeps_the_services() -> None:
    journal = OperationJournal(rule=BY_CALL, unmet=("charge",), services={"charge": ""})
    assert OperationJournal.decode(journal.encode()) == journal
    assert b"services" not in OperationJournal().encode()
