"""The journal: its entries after each step of a call."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe.client import Journal, KeyTooOld, RetriesError
from retrysafe.client.journal import PlannedCall
from retrysafe.core.times import DAY_MICROS, SECOND_MICROS
from retrysafe.errors import FingerprintMismatch, StoreUnavailable
from tests.forks import FORKS

PLAN = PlannedCall("id-1", "order-7", "POST api/payments #1", "key-1", b"asked")
LIFE = 3600.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "keys.db", keep=1000.0) as one:
        yield one


def reopened(journal: Journal) -> Journal:
    journal.close()
    return Journal(journal.path)


def test_the_key_is_on_disk_before_anything_is_sent(journal: Journal) -> None:
    journal.record_send(PLAN, 5, LIFE)
    with reopened(journal) as other:
        (found,) = other.unfinished()
        assert (found.key, found.state, found.sends, found.first_sent) == ("key-1", "sent", 1, 5)
        again = other.record_send(PLAN._replace(key="another"), 6, LIFE)
        assert (again.key, again.sends, again.first_sent) == ("key-1", 2, 5), "the key that was written first"


def test_an_answer_ends_it(journal: Journal) -> None:
    journal.record_send(PLAN, 1, LIFE)
    journal.record_answer("id-1", 201, 2)
    assert journal.unfinished() == []
    (found,) = journal.entries("order-7")
    assert (found.state, found.status) == ("answered", 201)
    assert journal.record_send(PLAN, 3, LIFE).state == "answered", "asking again does not undo the answer"


def test_what_was_surely_not_sent_is_planned_again_and_may_still_change(journal: Journal) -> None:
    journal.record_send(PLAN, 1, LIFE)
    journal.record_unsent("id-1", 2)
    (found,) = journal.entries("order-7")
    assert (found.state, found.sends) == ("planned", 0)
    other = journal.record_send(PLAN._replace(fingerprint=b"other"), 10 * DAY_MICROS, LIFE)
    assert (other.state, other.first_sent) == ("sent", 10 * DAY_MICROS), "neither its body nor its age matter yet"


def test_nobody_takes_back_what_another_may_have_sent(journal: Journal) -> None:
    journal.record_send(PLAN, 1, LIFE)
    journal.record_send(PLAN, 2, LIFE)
    journal.record_unsent("id-1", 3)
    assert [one.state for one in journal.unfinished()] == ["sent"]


def test_one_key_does_not_stand_for_two_requests(journal: Journal) -> None:
    journal.record_send(PLAN, 1, LIFE)
    with pytest.raises(FingerprintMismatch, match="'key-1'"):
        journal.record_send(PLAN._replace(fingerprint=b"other"), 2, LIFE)
    assert journal.record_send(PLAN._replace(fingerprint=b""), 3, LIFE).sends == 2, "a stream cannot be compared"


def test_a_key_that_the_server_may_have_forgotten_is_not_sent(journal: Journal) -> None:
    journal.record_send(PLAN, 0, LIFE)
    journal.record_send(PLAN, 3599 * SECOND_MICROS, LIFE)
    with pytest.raises(KeyTooOld, match=r"'order-7'.*never answered.*new operation name"):
        journal.record_send(PLAN, 3600 * SECOND_MICROS, LIFE)
    journal.record_answer("id-1", 201, 1)
    with pytest.raises(KeyTooOld, match="answered with 201"):
        journal.record_send(PLAN, 3600 * SECOND_MICROS, LIFE)
    assert journal.forget("id-1")
    assert not journal.forget("id-1")
    assert journal.record_send(PLAN, 3600 * SECOND_MICROS, LIFE).sends == 1


def test_an_exchanged_key_stays_exchanged(journal: Journal) -> None:
    journal.record_send(PLAN, 1, LIFE)
    journal.record_rotation("id-1", "key-2", 1, 2)
    with reopened(journal) as other:
        found = other.record_send(PLAN, 3, LIFE)
        assert (found.key, found.rotations, found.sends, found.first_sent) == ("key-2", 1, 1, 3)
        other.record_rotation("id-1", "key-late", 1, 4)
        assert other.record_send(PLAN, 5, LIFE).key == "key-2", "two processes that rotate at once agree on one key"


def test_pruning_forgets_old_answers_and_nothing_unfinished(journal: Journal) -> None:
    for name in ("open", "done", "planned", "young"):
        journal.record_send(PLAN._replace(id=name), 0, LIFE)
    journal.record_answer("done", 200, 0)
    journal.record_unsent("planned", 0)
    journal.record_answer("young", 200, 1)
    assert journal.prune(1000 * SECOND_MICROS + 1) == 2
    assert {one.id for one in journal.entries("order-7")} == {"open", "young"}


def test_pruning_happens_by_itself(journal: Journal) -> None:
    journal.record_send(PLAN, 0, LIFE)
    journal.record_answer("id-1", 200, 0)
    with reopened(journal) as other:
        other.record_send(PLAN._replace(id="id-2"), 31 * DAY_MICROS, LIFE)
        assert [one.id for one in other.entries("order-7")] == ["id-2"]


def test_its_file_is_the_owners_alone(journal: Journal) -> None:
    journal.record_send(PLAN, 0, LIFE)
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_threads_share_it(journal: Journal) -> None:
    threads = [threading.Thread(target=journal.record_send, args=(PLAN, at, LIFE)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (found,) = journal.unfinished()
    assert found.sends == 8


def many(path: Path) -> None:
    with Journal(path) as journal:
        for _ in range(20):
            journal.record_send(PLAN, 1, LIFE)


def test_processes_share_it(tmp_path: Path) -> None:
    processes = [FORKS.Process(target=many, args=(tmp_path / "j.db",)) for _ in "123"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with Journal(tmp_path / "j.db") as journal:
        assert [one.sends for one in journal.unfinished()] == [60]


def test_a_journal_that_cannot_be_written_sends_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "missing" / "j.db") as journal, pytest.raises(StoreUnavailable, match=r"missing.*writable"):
        journal.record_send(PLAN, 1, LIFE)


def test_it_goes_on_after_the_disk_said_no(journal: Journal) -> None:
    journal.record_send(PLAN, 1, LIFE)
    with sqlite3.connect(journal.path) as other:
        other.execute("CREATE TRIGGER full BEFORE UPDATE ON calls BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    other.close()
    with pytest.raises(StoreUnavailable, match="disk full"):
        journal.record_send(PLAN, 2, LIFE)
    with sqlite3.connect(journal.path) as other:
        other.execute("DROP TRIGGER full")
    other.close()
    assert journal.record_send(PLAN, 3, LIFE).sends == 2


def test_keeping_nothing_is_not_a_journal(tmp_path: Path) -> None:
    with pytest.raises(RetriesError, match="keep"):
        Journal(tmp_path / "j.db", keep=0)
