"""Operations whose journal grows long: a warning while it still fits, and an error that says what to change."""

from __future__ import annotations

import secrets

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import Advance, List
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import StoreError
from retrysafe.operations import Operation
from retrysafe.operations.journal import OperationJournal
from retrysafe.worker.completer import Completer
from tests.opening import unique, with_option


def repeating(safe: RetrySafe, sent: list[str], size: int) -> Operation:
    op = safe.operation("repeating", max_attempts=2)

    @op.foreign(tries=1)
    def send(number: int, *, key: str) -> str:
        sent.append(key)
        return secrets.token_hex(size // 2)

    @op.body
    def body(count: int) -> Answer:
        for number in range(count):
            send(number)
        return Answer(200, {"count": count})

    return op


def test_a_long_journal_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.operations.run.LARGE_JOURNAL_BYTES", 1_000)
    with RetrySafe("memory://") as safe:
        op = repeating(safe, [], 100)
        op(3, key="short")
        assert (safe.counters.get("journal_large"), caplog.records) == (None, [])
        op(12, key="a key nobody may read in a log")
        assert safe.counters["journal_large"] == 1
        (line,) = caplog.messages
        assert "repeating@1" in line
        assert "split it into several operations" in line
        assert "nobody may read" not in line


@pytest.mark.store("dynamodb")
def test_one_that_does_not_fit_says_what_to_change(request: pytest.FixtureRequest) -> None:
    """The store refuses it, and what was written before stands. Later attempts come to the same place and send only
    that step again, with its key; then a person has to look."""
    sent: list[str] = []
    url = with_option(with_option(request.getfixturevalue("dynamodb_url"), "table", unique()), "skew", "0")
    with RetrySafe(url) as safe:
        safe.migrate()
        op = repeating(safe, sent, 60_000)
        for attempt in (1, 2):
            with pytest.raises(StoreError, match="an operation with fewer steps, or whose steps return less") as told:
                op(40, key="k")
            assert "nothing was done" not in str(told.value), "steps ran"
            assert "'k' ran up to its step 'send'" in str(told.value)
            (record,) = safe.execute(List()).records
            assert (record.state, record.attempt) == (State.CLAIMED, attempt)
            entries = OperationJournal.decode(record.progress).entries
            assert 2 < len(entries) < 40
            assert len(set(sent)) == len(entries) + 1
            assert len(sent) == len(entries) + attempt
            lapse(safe, record)
        assert Completer(safe, grace=0).run_once().dead == 1
        assert safe.execute(List()).records[0].state is State.UNCERTAIN


def lapse(safe: RetrySafe, record: Record) -> None:
    """Give up the owner's lease in its name."""
    where = (record.advances + 1, record.point, record.progress)
    assert safe.execute(Advance(record.id, record.fence, *where, "resume", 0))
