"""A step that may have been sent stays open until the body calls it (rule 16, I23, I35): a person who undoes the run
undoes it too, and no code ends the run without it. In both forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OperationChanged, OutcomeUnknown
from retrysafe.operations import Stop, Undo
from retrysafe.operations.journal import BY_CALL, OperationJournal, describe_next_step
from tests.operations.test_announcing import Program, Story, finishes, refuses
from tests.operations.world import World

FORMS = ["previous", "current"]


def calls(w: World) -> list[str]:
    return [each.partition(":")[0] for each in w.sent]


def keys(w: World, step: str) -> set[str]:
    return {each.partition(":")[2] for each in w.sent if each.partition(":")[0] == step}


def die_in_pick(w: World, names: Sequence[str], forms: str, busy: bool = False, **options: Any) -> None:
    first = Program(w, names, dies="pick", forms=forms, **options)
    if busy:
        first.finish_one_before()
    first.die()


def undo(w: World, program: Program) -> Any:
    try:
        return w.run(program.op.undo_id(w.record().id, because="the customer cancelled")).answer
    finally:
        program.close()


# A person undoes it ------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
@pytest.mark.parametrize("names", [["KEEP", "pick", "pack"], ["pick", "pack"], ["pack", "KEEP", "pick"]])
@pytest.mark.parametrize("forms", FORMS)
def test_a_person_undoes_what_may_have_been_sent(w: World, forms: str, names: list[str], busy: bool) -> None:
    """Its undo gets None for the result: it is unknown whether it happened."""
    die_in_pick(w, names, forms, busy)
    assert calls(w).count("pick") == 1
    w.sent.clear()
    assert undo(w, Program(w, names, forms=forms)).status == 409
    before = names[: names.index("pick")]
    assert calls(w) == ["undo pick None", *(f"undo {name} {name}" for name in reversed(before))]
    assert w.states() == dict.fromkeys([*before, "pick"], "undone")
    assert w.state() is State.COMPLETED


@pytest.mark.parametrize("forms", FORMS)
def test_its_arguments_are_those_that_the_body_gives_it(w: World, forms: str) -> None:
    taken: list[Any] = []

    def declare(dies: str) -> Program:
        program = Program(w, [], forms=forms, dies=dies)

        def refund(order: str, cents: int, result: Any) -> None:
            taken.append((order, cents, result))

        @program.op.foreign(undo=w.in_mode(refund))
        @w.in_mode
        def charge(order: str, cents: int, *, key: str) -> str:
            return program.met("charge")

        def body() -> Any:
            order = yield program.steps["PICK"]
            yield lambda: charge(order, cents=5)
            return Answer(200, {})

        program.steps["PICK"] = program.declare("PICK")
        program.op._body = w.in_mode(body)
        return program

    declare("charge").die()
    assert undo(w, declare("")).status == 409
    assert taken == [("PICK", 5, None)]


@pytest.mark.parametrize("other", [["KEEP", "check", "pick"], ["KEEP", "take"], ["KEEP"], ["ALSO", "pick"]])
@pytest.mark.parametrize("forms", FORMS)
def test_other_code_does_not_undo_the_rest_of_it(w: World, forms: str, other: list[str]) -> None:
    """It does not call the step that may have been sent, so it could only leave it out."""
    die_in_pick(w, ["KEEP", "pick"], forms)
    sent = list(w.sent)
    for _ in range(2):
        with pytest.raises(OperationChanged):
            undo(w, Program(w, other, forms=forms))
        assert (w.sent, w.state(), w.journal().undoing) == (sent, State.RELEASED, None)
    assert undo(w, Program(w, ["KEEP", "pick"], forms=forms)).status == 409
    assert calls(w)[-2:] == ["undo pick None", "undo KEEP KEEP"]


@pytest.mark.parametrize("forms", FORMS)
def test_a_body_that_fails_before_it_is_not_undone_either(w: World, forms: str) -> None:
    def fails(steps: dict[str, Any]) -> Any:
        yield steps["KEEP"]
        raise ZeroDivisionError("a new defect")

    die_in_pick(w, ["KEEP", "pick"], forms)
    sent = list(w.sent)
    with pytest.raises(OperationChanged, match=r"'pick' may have been sent.*a new defect"):
        undo(w, Program(w, ["KEEP", "pick"], forms=forms, story=fails))
    assert (w.sent, w.journal().undoing) == (sent, None)


@pytest.mark.parametrize("forms", FORMS)
def test_a_body_that_passes_over_every_error(w: World, forms: str) -> None:
    def careless(steps: dict[str, Any]) -> Any:
        yield steps["KEEP"]
        for name in ("pick", "pack"):
            try:
                yield steps[name]
            except Exception:
                continue
        return Answer(200, {})

    die_in_pick(w, ["KEEP", "pick", "pack"], forms)
    w.sent.clear()
    assert undo(w, Program(w, ["KEEP", "pick", "pack"], forms=forms, story=careless)).status == 409
    assert calls(w) == ["undo pick None", "undo KEEP KEEP"]


@pytest.mark.parametrize("forms", FORMS)
def test_what_was_never_begun_is_not_undone(w: World, forms: str) -> None:
    program = Program(w, ["pick"], forms=forms)
    w.run(program.op.submit(key="k"))
    assert undo(w, program).status == 409
    assert w.sent == []


# Code that leaves it out -------------------------------------------------------------------------


def other_step_then(ending: BaseException | None) -> Story:
    def story(steps: dict[str, Any]) -> Any:
        yield steps["KEEP"]
        yield steps["ALSO"]
        if ending is not None:
            raise ending
        return Answer(201, {})

    return story


@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
@pytest.mark.parametrize("ending", [Undo(402, {}), Stop(402, {}), None], ids=["undo", "stop", "answer"])
@pytest.mark.parametrize("forms", FORMS)
def test_no_ending_leaves_it_out(w: World, forms: str, ending: BaseException | None, busy: bool) -> None:
    die_in_pick(w, ["KEEP", "pick"], forms, busy)
    other = Program(w, ["KEEP", "ALSO", "pick"], forms=forms, story=other_step_then(ending))
    refuses(w, other, "'pick' may have been sent")
    assert w.journal().undoing is None
    again = Program(w, ["KEEP", "pick"] if forms == "previous" else ["KEEP", "ALSO", "pick"], forms=forms)
    finishes(w, again)
    assert len(keys(w, "pick")) == 1


@pytest.mark.parametrize("first", [["pick"], ["KEEP", "pick"]])
@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
@pytest.mark.parametrize("forms", FORMS)
def test_code_that_does_not_know_it_any_more_sends_nothing(w: World, forms: str, busy: bool, first: list[str]) -> None:
    """Renamed: it would be sent under another key."""
    die_in_pick(w, first, forms, busy)
    renamed = [*first[:-1], "take"]
    refuses(w, Program(w, renamed, forms=forms, known=renamed), "may have been sent")
    finishes(w, Program(w, first, forms=forms))
    assert calls(w) == ["pick", "pick"]


def test_a_step_that_returns_the_answer_does_not_leave_it_out(w: World) -> None:
    die_in_pick(w, ["KEEP", "pick"], "current")
    other = Program(w, ["KEEP"], forms="current")

    @other.op.local
    @w.in_mode
    def finish(tx: Any) -> Answer:
        yield from w.insert(tx, "finished")
        return Answer(201, {})

    def body() -> Any:
        yield other.steps["KEEP"]
        return (yield finish)

    other.op._body = w.in_mode(body)
    refuses(w, other, "'pick' may have been sent")
    assert w.items() == ["KEEP"]


@pytest.mark.parametrize("first", [["pick"], ["KEEP", "pick"]])
@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
def test_another_foreign_step_in_its_place_is_not_sent(w: World, busy: bool, first: list[str]) -> None:
    """`pick` is still declared, and `take` is called instead of it, or before it: it may do the same thing."""
    die_in_pick(w, first, "current", busy)
    for other in ([*first[:-1], "take"], [*first[:-1], "take", "pick"], [*first[:-1], "ALSO", "take"]):
        refuses(w, Program(w, other, forms="current"), "'pick' may have been sent, and this code calls 'take' before")
    assert calls(w) == ["pick"]
    finishes(w, Program(w, [*first[:-1], "ALSO", "pick", "take"], forms="current"))
    assert (calls(w), len(keys(w, "pick"))) == (["pick", "pick", "take"], 1)


def test_a_body_that_passes_over_the_refusal_sends_nothing_else(w: World) -> None:
    def careless(steps: dict[str, Any]) -> Any:
        yield steps["KEEP"]
        for name in ("take", "pack"):
            try:
                yield steps[name]
            except Exception:
                continue
        return Answer(200, {})

    die_in_pick(w, ["KEEP", "pick"], "current")
    names = ["KEEP", "pick", "take", "pack"]
    refuses(w, Program(w, names, forms="current", story=careless), "'pick' may have been sent")


def test_a_person_says_that_another_step_may_come_in_its_place(w: World) -> None:
    die_in_pick(w, ["KEEP", "pick"], "current")
    other = Program(w, ["KEEP", "take"], forms="current")
    assert w.run(other.op.resume_id(w.record().id, because="their log has no such key")).answer.status == 200
    other.close()
    assert calls(w) == ["pick", "take"]


def test_both_stay_open_where_older_code_sent_another_one_before_it(w: World) -> None:
    """`check` was put before `pick` and sent by code that did not refuse it; its process was killed, too."""
    die_in_pick(w, ["KEEP", "pick"], "current")
    left = w.journal().replace(unmet=("pick",), announced="check", services={"pick": "", "check": ""})
    w.sql(f"UPDATE {w.keys} SET progress = ?", left.encode())
    assert describe_next_step(w.journal(), "KEEP") == "pick, check (may have been sent)"
    refuses(w, Program(w, ["KEEP"], forms="current", known=["pick"]), "'check' may have been sent")
    sent = list(w.sent)
    with pytest.raises(OperationChanged, match="'pick' may have been sent"):
        undo(w, Program(w, ["KEEP", "check", "pick"], forms="current"))
    assert w.sent == sent
    finishes(w, Program(w, ["KEEP", "check", "pick"], forms="current"))
    assert len(keys(w, "pick")) == len(keys(w, "check")) == 1
    assert calls(w) == ["pick", "check", "pick"]


def test_it_stays_open_over_commits_and_failures(w: World) -> None:
    die_in_pick(w, ["KEEP", "pick"], "current")
    at = w.journal().at

    def fails(steps: dict[str, Any]) -> Any:
        for name in ("KEEP", "ALSO", "MORE"):
            yield steps[name]
        raise ZeroDivisionError

    names = ["KEEP", "ALSO", "MORE", "pick"]
    for _ in range(2):
        w.age(600)
        at -= 600_000_000
        with pytest.raises(NotFinished):
            Program(w, names, forms="current", story=fails)()
        assert (w.journal().unmet, w.journal().at) == (("pick",), at), "its key is as old as it was"
    refuses(w, Program(w, names[:-1], forms="current"), "'pick' may have been sent")
    finishes(w, Program(w, names, forms="current"))
    assert w.items() == ["KEEP", "ALSO", "MORE"]
    assert len(keys(w, "pick")) == 1


class FailingPick(Program):
    """`pick` cannot be reached."""

    def met(self, name: str) -> str:
        if name == "pick":
            raise ConnectionError("refused")
        return super().met(name)


@pytest.mark.parametrize("names", [["pick"], ["pick", "pack"], ["KEEP", "pick", "pack"], ["KEEP", "pick", "MORE"]])
@pytest.mark.parametrize("forms", FORMS)
def test_a_step_that_was_begun_is_open_once(w: World, forms: str, names: list[str]) -> None:
    """One attempt failed in order and left the step as begun, the next one was killed in it. The one after that calls
    it, and has called all that may have been sent."""
    with pytest.raises(NotFinished):
        FailingPick(w, names, forms=forms, tries=1)()
    assert w.states()["pick"] == "begun"
    die_in_pick(w, names, forms, tries=1)
    finishes(w, Program(w, names, forms=forms))
    assert len(keys(w, "pick")) == 1


@pytest.mark.parametrize("forms", FORMS)
def test_a_begun_step_that_was_announced_again_is_open_once(w: World, forms: str) -> None:
    """As the release before this one left it: its journal has the step as begun, and announces it."""
    with pytest.raises(NotFinished):
        FailingPick(w, ["KEEP", "pick", "pack"], forms=forms, tries=1)()
    left = w.journal().replace(announced="pick", left=0)
    w.sql(f"UPDATE {w.keys} SET state = 'claimed', lease_until = started + 1, on_lapse = 'resume', progress = ?",
          left.encode())  # fmt: skip
    assert describe_next_step(w.journal(), "pick") == "pick (may have been sent)"
    finishes(w, Program(w, ["KEEP", "pick", "pack"], forms=forms))
    assert len(keys(w, "pick")) == 1


@pytest.mark.parametrize("forms", FORMS)
def test_whoever_gives_up_before_it_asks_a_person(w: World, forms: str) -> None:
    """It used to undo the rest."""

    def fails(steps: dict[str, Any]) -> Any:
        yield steps["KEEP"]
        raise ZeroDivisionError

    die_in_pick(w, ["KEEP", "pick"], forms)
    other = Program(w, ["KEEP", "pick"], forms=forms, story=fails)
    other.op.max_attempts = 2
    with pytest.raises(OutcomeUnknown):
        other()
    other.close()
    assert (w.state(), w.journal().undoing, calls(w)) == (State.UNCERTAIN, None, ["pick"])
    assert undo(w, Program(w, ["KEEP", "pick"], forms=forms)).status == 409
    assert calls(w) == ["pick", "undo pick None", "undo KEEP KEEP"]


def test_an_undo_before_all_that_is_known_does_not_leave_it_out(w: World) -> None:
    def undoes(steps: dict[str, Any]) -> Any:
        raise Undo(402, {})
        yield

    for forms in FORMS:
        die_in_pick(w, ["KEEP", "pick"], forms)
        refuses(w, Program(w, ["KEEP", "pick"], forms=forms, story=undoes), "this code does not call it")
        w.sql(f"DELETE FROM {w.keys}")


# A person says that it was not sent --------------------------------------------------------------


@pytest.mark.parametrize("forms", FORMS)
def test_what_a_person_said_counts_only_where_the_run_went_on(w: World, forms: str) -> None:
    """Code that is refused all the same leaves what it found."""
    die_in_pick(w, ["KEEP", "pick"], forms)
    other = Program(w, ["ALSO", "KEEP", "check"], forms=forms)
    with pytest.raises(OperationChanged, match="'KEEP'"):
        w.run(other.op.resume_id(w.record().id, because="their log has no such key"))
    other.close()
    refuses(w, Program(w, ["KEEP"], forms=forms), "'pick' may have been sent")


@pytest.mark.parametrize("forms", FORMS)
def test_a_refusal_says_so_where_the_step_may_not_be_repeated(w: World, forms: str) -> None:
    """It is uncertain again, and the caller gets OperationChanged."""
    Program(w, ["KEEP", "pick"], dies="pick", forms=forms, repeatable=False).die()
    w.sql(f"UPDATE {w.keys} SET on_lapse = 'uncertain'")
    other = Program(w, ["KEEP", "check", "pick"], forms=forms, repeatable=False)
    with pytest.raises(OperationChanged, match="its step number 2 was 'pick' and is now 'check'"):
        w.run(other.op.resume_id(w.record().id, because="their log has no such key"))
    other.close()
    assert (w.state(), calls(w)) == (State.UNCERTAIN, ["pick"])


@pytest.mark.parametrize("forms", FORMS)
def test_a_dead_letter_names_what_may_have_been_sent(w: World, forms: str) -> None:
    die_in_pick(w, ["KEEP", "pick"], forms)
    program = Program(w, ["KEEP", "pick"], forms=forms)
    w.run(program.op.give_up(w.record()))
    program.close()
    assert w.record().note == "dead letter: 1 attempts of shipping died at 'KEEP'; next: pick (may have been sent)"


def test_a_journal_keeps_what_is_open() -> None:
    journal = OperationJournal(rule=BY_CALL, unmet=("charge", "check"))
    assert OperationJournal.decode(journal.encode()) == journal
    assert b"unmet" not in OperationJournal(rule=BY_CALL).encode()


# The same code again ------------------------------------------------------------------------------


class Failing(Program):
    """A program whose step `fails` fails each time it is sent."""

    fails = ""

    def met(self, name: str) -> str:
        if name == self.fails:
            raise ConnectionError("the other system is away")
        return super().met(name)


@pytest.mark.parametrize("names", [["pick"], ["pick", "pack"], ["KEEP", "pick"]])
@pytest.mark.parametrize("forms", FORMS)
def test_a_step_that_failed_and_then_killed_its_process_is_finished(w: World, forms: str, names: list[str]) -> None:
    """Found by simulated seed 390: the begun step was announced once more by the attempt that was killed. The next one
    took the announcement for a second call of the step, and every attempt after it was refused, with the same code."""
    failing = Failing(w, names, forms=forms, tries=1)
    failing.fails = "pick"
    with pytest.raises(NotFinished):
        failing()
    failing.close()
    w.age(1000)
    die_in_pick(w, names, forms)
    finishes(w, Program(w, names, forms=forms))
