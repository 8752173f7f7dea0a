"""What may have been sent without a trace is announced (rule 16): other code sends it under the same key, or refuses
before anything is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.states import State
from retrysafe.errors import OperationChanged
from retrysafe.operations import Stop, Undo
from retrysafe.operations.announcing import (
    START_PATH,
    StepPredictor,
    announce_in,
    extend_path,
    read_announcement,
)
from retrysafe.operations.journal import UNNAMED, OperationJournal, describe_next_step
from tests.operations.world import World

Story = Callable[[dict[str, Any]], Any]


class Killed(BaseException):
    """Stands for SIGKILL: the code under test does not catch it."""


class Program:
    """The user's code, in a process of its own: steps by name, called in order. `dies`: killed after that one was sent.
    Names in capitals are local steps."""

    def __init__(
        self,
        w: World,
        names: Sequence[str],
        dies: str = "",
        story: Story | None = None,
        forms: str = "previous",
        known: Sequence[str] = ("pick", "pack"),
        **options: Any,
    ) -> None:
        self.w, self.dies, self.options = w, dies, options
        self.names = list(names)
        self.safe = RetrySafe(w.url, tx=w.safe.tx, forms=forms)  # type: ignore[arg-type]
        self.op = self.safe.operation("shipping")
        self.died: tuple[str, bytes] | None = None
        self.steps = {name: self.declare(name) for name in sorted({*names, *known})}

        def body() -> Any:
            if story is not None:
                return (yield from story(self.steps))
            for name in self.names:
                yield self.steps[name]
            return Answer(200, {})

        self.op.body(w.in_mode(body))

    def is_local(self, name: str) -> bool:
        return name.isupper()

    def declare(self, name: str) -> Any:
        def foreign(*, key: str) -> str:
            self.w.sent.append(f"{name}:{key}")
            return self.met(name)

        def local(tx: Any) -> Any:
            yield from self.w.insert(tx, name)
            return self.met(name)

        def take_back_foreign(result: Any, *, key: str) -> None:
            self.w.sent.append(f"undo {name} {result}:{key}")

        def take_back_local(tx: Any, result: Any) -> None:
            self.w.sent.append(f"undo {name} {result}:")

        step: Any = local if self.is_local(name) else foreign
        step.__name__ = name
        undo = self.w.in_mode(take_back_local if self.is_local(name) else take_back_foreign)
        declare: Any = self.op.local if self.is_local(name) else self.op.foreign
        return declare(undo=undo, **({} if self.is_local(name) else self.options))(self.w.in_mode(step))

    def met(self, name: str) -> str:
        if name == self.dies:
            record = self.w.record()
            self.died = (record.point, record.progress)
            raise Killed
        return name

    def __call__(self) -> Any:
        return self.w.run(self.op(key="k"))

    def finish_one_before(self, *names: str) -> None:
        """Another run, that went this way."""
        (dies, self.dies), (these, self.names) = (self.dies, ""), (self.names, list(names or self.names))
        assert self().status == 200
        self.dies, self.names = dies, these
        self.w.sql(f"DELETE FROM {self.w.keys}")
        self.w.sql(f"DELETE FROM {self.w.orders}")
        self.w.sent.clear()

    def die(self) -> None:
        """Killed: the record is as it was in the store at that moment, and the lease lapses."""
        with pytest.raises(Killed):
            self()
        assert self.died is not None
        self.w.sql(
            f"UPDATE {self.w.keys} SET state = 'claimed', lease_until = started + 1, on_lapse = 'resume', note = '', "
            "point = ?, progress = ?",
            *self.died,
        )
        self.close()

    def close(self) -> None:
        if self.w.loop is not None:
            self.w.loop.run(self.safe.aclose())
        else:
            self.safe.close()


def refuses(w: World, program: Program, match: str) -> None:
    sent = list(w.sent)
    for _ in range(2):  # a refusal does not make the next attempt forget
        with pytest.raises(OperationChanged, match=match):
            program()
        assert w.sent == sent
        assert (w.state(), "OperationChanged" in w.record().note) == (State.RELEASED, True)
    program.close()


def finishes(w: World, program: Program) -> None:
    assert program().status == 200
    program.close()
    calls = [each.partition(":")[0] for each in sorted(set(w.sent))]
    assert len(calls) == len(set(calls)), f"sent under two keys: {w.sent}"


@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
@pytest.mark.parametrize(
    "other",
    [["check", "pick", "pack"], ["CHECK", "pick", "pack"], ["take", "pack"], ["pack", "pick"], []],
    ids=["foreign", "local", "renamed", "reordered", "nothing"],
)
def test_the_first_step_of_all(w: World, other: list[str], busy: bool) -> None:
    """Nothing is written down at that moment but the claim, or an announcement of its own."""
    first = Program(w, ["pick", "pack"], dies="pick")
    if busy:
        first.finish_one_before()
    first.die()
    assert (w.record().progress == b"") == busy
    refuses(w, Program(w, other), "'pick' may have been sent as its step number 1")
    finishes(w, Program(w, ["pick", "pack"]))


@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
@pytest.mark.parametrize("other", [["KEEP", "check", "pick"], ["KEEP", "take"], ["KEEP"]])
def test_the_step_after_a_local_one(w: World, other: list[str], busy: bool) -> None:
    first = Program(w, ["KEEP", "pick"], dies="pick")
    if busy:
        first.finish_one_before()
    first.die()
    assert (w.journal().announced, describe_next_step(w.journal(), "KEEP")) == ("pick", "pick (may have been sent)")
    refuses(w, Program(w, other), "'pick' may have been sent as its step number 2")
    finishes(w, Program(w, ["KEEP", "pick"]))
    assert w.items() == ["KEEP"]


def stops(steps: dict[str, Any]) -> Any:
    yield steps["KEEP"]
    raise Stop(410, {})


def undoes(steps: dict[str, Any]) -> Any:
    yield steps["KEEP"]
    raise Undo(502, {})


@pytest.mark.parametrize("story", [stops, undoes])
def test_an_ending_that_leaves_it_out(w: World, story: Story) -> None:
    """An answer without the step that may have been sent would be a guess."""
    Program(w, ["KEEP", "pick"], dies="pick").die()
    refuses(w, Program(w, ["KEEP", "pick"], story=story), "this code does not call it")
    finishes(w, Program(w, ["KEEP", "pick"]))


@pytest.mark.parametrize("before", [["pack", "pick"], ["KEEP", "pick"]])
@pytest.mark.parametrize("now", [["pick", "pack"], ["KEEP", "pack", "pick"], ["KEEP", "ALSO", "pick"]])
def test_a_body_that_goes_another_way_than_before_is_not_refused(w: World, before: list[str], now: list[str]) -> None:
    """A wrong prediction is corrected before anything is sent or committed."""
    for dies in now:
        program = Program(w, [*before, *now], dies=dies)
        program.names = now
        program.finish_one_before(*before)
        program.die()
        again = Program(w, [*before, *now])
        again.names = now
        finishes(w, again)
        w.sql(f"DELETE FROM {w.keys}")
        w.sent.clear()


def test_a_person_says_that_it_was_not_sent(w: World) -> None:
    Program(w, ["KEEP", "pick"], dies="pick").die()
    w.sent.clear()
    other = Program(w, ["KEEP", "check", "pick"])
    record = w.record()
    with pytest.raises(OperationChanged, match="--because"):
        w.run(other.op.resume_id(record.id))
    assert w.run(other.op.resume_id(record.id, because="their log has no such key")).answer.status == 200
    other.close()
    assert [each.partition(":")[0] for each in w.sent] == ["check", "pick"]


# Pure --------------------------------------------------------------------------------------------


def test_what_followed_every_time_is_predicted() -> None:
    predictor, path = StepPredictor(), extend_path(START_PATH, "insert")
    assert predictor.predict(path) == ""
    predictor.learn(path, "charge")
    predictor.learn(path, "charge")
    assert predictor.predict(path) == "charge"
    predictor.learn(path, "check")
    predictor.learn(path, "charge")
    assert predictor.predict(path) == "", "it does not always go this way"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.operations.announcing.MAX_PATHS", 3)
    predictor = StepPredictor()
    for path in range(10):
        predictor.learn(path, "step")
    assert [predictor.predict(path) for path in range(5)] == ["step", "step", "step", "", ""]


def test_a_runs_number_announces_its_first_step() -> None:
    for number in range(50):
        drawn = number.to_bytes(16, "big")
        run = announce_in(drawn, "charge", "stripe")
        assert (len(run), run[:11]) == (16, drawn[:11])
        assert read_announcement(run, {"insert": "", "charge": "stripe"}) == ("charge", True)
        assert read_announcement(run, {"insert": "", "charge": ""}) == (UNNAMED, True)
        assert read_announcement(run, {"insert": ""}) == (UNNAMED, True)
        assert read_announcement(drawn, {"insert": "", "charge": "stripe"}) == ("", False)


def test_a_run_whose_number_announces_no_service_goes_on() -> None:
    """As runs were numbered before services were written down, and as they are where the first step is a local one."""
    head = bytes(range(11))
    mark, name = (hashlib.sha256(b"first step\0" + head + text).digest() for text in (b"", b"charge"))
    run = head + mark[:3] + name[:2]
    assert announce_in(head + bytes(5), "charge", None) == run
    assert read_announcement(run, {"insert": "", "charge": "stripe"}) == ("charge", False)
    assert read_announcement(run, {"insert": ""}) == (UNNAMED, False)


def test_a_journal_keeps_what_is_announced_until_an_entry_follows() -> None:
    journal = OperationJournal(announced="charge")
    assert OperationJournal.decode(journal.encode()).announced == "charge"
    assert b"announced" not in OperationJournal().encode()
