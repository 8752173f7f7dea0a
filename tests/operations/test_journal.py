"""The journal as it is stored: what older releases read of it, and what it costs to write it with every commit."""

from __future__ import annotations

import json

import pytest

from retrysafe import Answer
from retrysafe.operations.journal import BY_CALL, BY_PLACE, Entry, Journal

ENTRIES = (Entry("a", "done", at=3, given="0123"), Entry("b", "begun"), Entry("a", "done"))


@pytest.mark.parametrize("rule", [BY_PLACE, BY_CALL])
def test_it_comes_back_as_it_was(rule: int) -> None:
    counts = {"left": 2, "counted": 3, "failed": 1, "failed_at": 9}
    journal = Journal(ENTRIES, Answer(409, b"\xff", {"x": "y"}), "why", 7, rule, **counts)
    assert Journal.decode(journal.encode()) == journal
    assert Journal.decode(Journal(rule=rule).encode()) == Journal(rule=rule)


def test_the_release_before_reads_what_it_knows() -> None:
    """Version 1, seven parts to an entry, and beside it only what it never looks at."""
    whole = json.loads(Journal(ENTRIES, left=2, counted=2, failed=1).encode())
    assert whole["v"] == 1
    assert [len(entry) for entry in whole["entries"]] == [7, 7, 7]
    assert {"v", "entries", "undoing", "cause", "at"} <= whole.keys()


def test_what_the_release_before_wrote_is_read() -> None:
    older = b'{"v":1,"entries":[["a","done","","1",3,"",0]],"undoing":null,"cause":"","at":5}'
    journal = Journal.decode(older)
    assert journal == Journal((Entry("a", "done", "", "1", 3),), at=5)
    assert journal.failures(4) == 4, "it did not count failures: every attempt is one"


def test_calls_are_numbered_by_the_rule() -> None:
    assert [Journal(ENTRIES).number(entry.step, place) for place, entry in enumerate(ENTRIES)] == [0, 1, 2]
    by_call = Journal(ENTRIES, rule=BY_CALL)
    assert [by_call.number(entry.step, place) for place, entry in enumerate(ENTRIES)] == [0, 0, 1]


def test_an_entry_is_put_into_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every commit all entries are written: a long operation must not pay for each of them each time."""
    written: list[object] = []
    dumps = json.dumps

    def counted(value: object, **options: object) -> str:
        written.append(value)
        return dumps(value, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("retrysafe.operations.journal.json.dumps", counted)
    journal, steps = Journal(), 200
    for place in range(steps):
        journal = journal.with_entry(place, Entry("a", "done", result=str(place)))
        journal.encode()
    assert len(written) == 2 * steps, "one entry and the rest of the journal for each commit"
    assert Journal.decode(journal.encode()) == journal
