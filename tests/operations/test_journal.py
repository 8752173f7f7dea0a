"""The journal as it is stored: what older releases read of it, and what it costs to write it with every commit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from retrysafe import Answer
from retrysafe.operations import blocks
from retrysafe.operations.journal import (
    BY_CALL,
    BY_PLACE,
    TO_UNDO,
    EntryState,
    OperationJournal,
    StepEntry,
    format_recovery_point,
)

ENTRIES = (StepEntry("a", "done", at=3, given="0123"), StepEntry("b", "begun"), StepEntry("a", "done"))


@pytest.mark.parametrize("rule", [BY_PLACE, BY_CALL])
def test_it_comes_back_as_it_was(rule: int) -> None:
    counts = {"left": 2, "counted": 3, "failed": 1, "failed_at": 9}
    journal = OperationJournal(ENTRIES, Answer(409, b"\xff", {"x": "y"}), "why", 7, rule, **counts)
    assert OperationJournal.decode(journal.encode()) == journal
    assert OperationJournal.decode(OperationJournal(rule=rule).encode()) == OperationJournal(rule=rule)


def test_the_release_before_reads_what_it_knows() -> None:
    """Version 1, seven parts to an entry, and beside it only what it never looks at."""
    whole = json.loads(OperationJournal(ENTRIES, left=2, counted=2, failed=1).encode())
    assert whole["v"] == 1
    assert [len(entry) for entry in whole["entries"]] == [7, 7, 7]
    assert {"v", "entries", "undoing", "cause", "at"} <= whole.keys()


def test_what_the_release_before_wrote_is_read() -> None:
    older = b'{"v":1,"entries":[["a","done","","1",3,"",0]],"undoing":null,"cause":"","at":5}'
    journal = OperationJournal.decode(older)
    assert journal == OperationJournal((StepEntry("a", "done", "", "1", 3),), at=5)
    assert journal.count_failures(4) == 4, "it did not count failures: every attempt is one"


def test_calls_are_numbered_by_the_rule() -> None:
    assert [OperationJournal(ENTRIES).call_number(entry.step, place) for place, entry in enumerate(ENTRIES)] == [
        0,
        1,
        2,
    ]
    by_call = OperationJournal(ENTRIES, rule=BY_CALL)
    assert [by_call.call_number(entry.step, place) for place, entry in enumerate(ENTRIES)] == [0, 0, 1]


def test_an_entry_is_put_into_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every commit all entries are written: a long operation must not pay for each of them each time."""
    written: list[object] = []
    dumps = json.dumps

    def counted(value: object, **options: object) -> str:
        written.append(value)
        return dumps(value, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("retrysafe.operations.journal.json.dumps", counted)
    journal, steps = OperationJournal(), 200
    for place in range(steps):
        journal = journal.with_entry(place, StepEntry("a", "done", result=str(place)))
        journal.encode()
    assert len(written) == 2 * steps, "one entry and the rest of the journal for each commit"
    assert OperationJournal.decode(journal.encode()) == journal


def test_a_commit_costs_the_same_however_long_the_journal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done for each entry at each commit, counted: it must not grow with the journal. Forwards, an entry is
    begun and then done; backwards, each is marked twice."""
    asked: list[str] = []
    text = StepEntry.encode

    def counted(entry: StepEntry) -> str:
        asked.append(entry.step)
        return text(entry)

    monkeypatch.setattr(StepEntry, "encode", counted)
    journal, cost = OperationJournal(rule=BY_CALL), []
    for place in range(1_000):
        asked.clear()
        journal = journal.with_entry(place, StepEntry("a", "begun", given="00"))
        journal.call_number("a", place)
        journal = journal.with_entry(place, journal.entries[place].replace(state="done", result="1")).replace(at=place)
        journal.encode()
        cost.append(len(asked))
    assert max(cost) <= 2 * blocks.BLOCK_ENTRIES
    journal, cost = replace(journal, undoing=Answer(409)), []
    journal.encode()
    for place in reversed(range(1_000)):
        asked.clear()
        for state in ("undoing", "undone"):
            journal = journal.with_entry(place, journal.entries[place].replace(state=state))
            format_recovery_point(journal)
            journal.encode()
        cost.append(len(asked))
    assert max(cost) <= 4 * blocks.BLOCK_ENTRIES


def whole(journal: OperationJournal) -> bytes:
    """The text of a journal, made in one go without a cache: the definition."""
    parts = [[e.step, e.state, e.args, e.result, e.at, e.error, e.undo_at] for e in journal.entries]
    undoing = journal.undoing and [journal.undoing.status, journal.undoing.body.decode("latin-1"), []]
    told = {"v": journal.rule, "entries": parts, "undoing": undoing, "cause": journal.cause, "at": journal.at}
    told |= {name: count for name in ("left", "counted", "failed", "failed_at") if (count := getattr(journal, name))}
    if any(entry.given for entry in journal.entries):
        told["given"] = [entry.given for entry in journal.entries]
    return json.dumps(told, separators=(",", ":")).encode()


TEXTS = st.text(max_size=3)
SOME = st.builds(
    StepEntry,
    st.sampled_from("abc"),
    st.sampled_from(get_args(EntryState)),
    TEXTS,
    TEXTS,
    st.integers(0, 9),
    given=TEXTS,
)


class Writing(RuleBasedStateMachine):
    """After any changes, with encodings in between, a journal has the text of one that is encoded in one go."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(blocks, "BLOCK_ENTRIES", 3)
        self.journal = OperationJournal(rule=BY_CALL)

    def teardown(self) -> None:
        self.patch.undo()

    @rule(entries=st.lists(SOME, min_size=1, max_size=5))
    def append(self, entries: list[StepEntry]) -> None:
        for entry in entries:
            self.journal = self.journal.with_entry(len(self.journal.entries), entry)

    @rule(entry=SOME, data=st.data())
    def change(self, entry: StepEntry, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.journal.entries)))
        self.journal = self.journal.with_entry(place, entry)

    @rule(entries=st.lists(SOME, max_size=8))
    def replace_all(self, entries: list[StepEntry]) -> None:
        self.journal = replace(self.journal, entries=tuple(entries))

    @rule(at=st.integers(0, 9), cause=TEXTS)
    def change_the_rest(self, at: int, cause: str) -> None:
        self.journal = self.journal.replace(at=at, cause=cause, failed=at)

    @rule(undoing=st.sampled_from((None, Answer(409))))
    def turn_back(self, undoing: Answer | None) -> None:
        self.journal = replace(self.journal, undoing=undoing)

    @rule()
    def write(self) -> None:
        assert self.journal.encode() == whole(self.journal)
        assert OperationJournal.decode(self.journal.encode()) == self.journal

    @rule(data=st.data(), step=st.sampled_from("abc"))
    def count(self, data: st.DataObject, step: str) -> None:
        place = data.draw(st.integers(0, len(self.journal.entries)))
        before = self.journal.entries[:place]
        assert self.journal.call_number(step, place) == sum(entry.step == step for entry in before)
        undoing = replace(self.journal.replace(), undoing=Answer(409))
        left = sum(entry.state in TO_UNDO for entry in self.journal.entries)
        assert (
            format_recovery_point(undoing)
            == format_recovery_point(self.journal.replace(undoing=Answer(409)))
            == f"undoing: {left} left"
        )


TestWriting = Writing.TestCase
TestWriting.settings = settings(max_examples=100, stateful_step_count=15, deadline=None)
