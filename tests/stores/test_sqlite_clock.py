"""SQLite's clock and SQLite's lock: a statement that waited for the file is done by the time when it was let in."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Op
from retrysafe.core.states import State
from retrysafe.core.times import HOUR_MICROS, duration_to_micros
from retrysafe.testing import Do
from retrysafe.testing.builders import advance, claim, complete, lookup, record_of, renew
from tests.opening import COLOURS, open_do, open_migrated

pytestmark = pytest.mark.store("sqlite")

each_colour = pytest.mark.parametrize("colour", COLOURS)

ASKED = 1_700_000_000_000_000
WAITED = duration_to_micros(10)
LEASE = 2
"""Seconds. Less than the wait: by the time of asking, such a lease is over when it is granted."""
SLACK = 60.0


class Watched:
    """A file whose connections say when they begin a statement, and a clock that stands still until it is told."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.now = ASKED
        self._begun = threading.Event()
        self._wanted = ""
        connect = sqlite3.connect

        def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **kwargs)
            connection.set_trace_callback(self._saw)
            return connection

        open_migrated(f"sqlite:///{path}", "sync").close()
        monkeypatch.setattr(sqlite3, "connect", watched)
        monkeypatch.setattr(time, "time_ns", lambda: self.now * 1000)

    def _saw(self, statement: str) -> None:
        # SQLite tells of a statement before it asks for the lock.
        if self._wanted and statement.lstrip().startswith(self._wanted):
            self._begun.set()

    @contextmanager
    def store(self, colour: str) -> Iterator[Do]:
        with closing(open_do(f"sqlite:///{self.path}?timeout={SLACK}", colour)) as do:
            do(lookup("warm", now=None))
            yield do

    def waited(self, act: Callable[[], Any], first_word: str) -> Any:
        """What `act` says that begins while somebody else has the write lock, and is let in ten seconds later."""
        self._begun.clear()
        self.now = ASKED
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other, ThreadPoolExecutor(1) as pool:
            other.execute("BEGIN IMMEDIATE")
            self._wanted = first_word
            told = pool.submit(act)
            try:
                assert self._begun.wait(SLACK), f"no {first_word} was begun"
                assert not told.done()
                self.now = ASKED + WAITED
            finally:
                self._wanted = ""
                other.execute("ROLLBACK")
            return told.result(SLACK)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path / "clock.db", monkeypatch)


@each_colour
def test_a_lease_is_counted_from_when_the_lock_was_got(file: Watched, colour: str) -> None:
    with file.store(colour) as do:
        reply = file.waited(lambda: do(claim("k", lease=LEASE, now=None)), "INSERT")
        assert reply.granted is True
        assert reply.now == ASKED + WAITED
        assert record_of(reply).lease_until == ASKED + WAITED + duration_to_micros(LEASE)
        # What it was told is what is stored, and a rival does not get it.
        assert do(lookup("k", now=None)).record == reply.record
        assert do(claim("k", lease=LEASE, on_lapse="rerun", now=None)).granted is False


@each_colour
def test_a_takeover_too(file: Watched, colour: str) -> None:
    with file.store(colour) as do:
        do(claim("k", lease=0, on_lapse="rerun", now=None))
        taken = file.waited(lambda: do(claim("k", lease=LEASE, on_lapse="rerun", now=None)), "INSERT")
        assert taken.granted is True
        assert record_of(taken).attempt == 2
        assert record_of(taken).lease_until == ASKED + WAITED + duration_to_micros(LEASE)


@each_colour
@pytest.mark.parametrize("act", [renew, advance])
def test_what_keeps_a_lease_too(file: Watched, colour: str, act: Callable[..., Op[bool]]) -> None:
    with file.store(colour) as do:
        held = do(claim("k", lease=1, now=None))
        assert file.waited(lambda: do(act(held, lease=LEASE, now=None)), "UPDATE") is True
        assert record_of(do(lookup("k", now=None))).lease_until == ASKED + WAITED + duration_to_micros(LEASE)


@each_colour
def test_an_answer_is_kept_from_when_it_was_written(file: Watched, colour: str) -> None:
    with file.store(colour) as do:
        held = do(claim("k", retention=0, now=None))
        assert file.waited(lambda: do(complete(held, now=None)), "UPDATE") is True
        record = record_of(do(lookup("k", now=None)))
        assert (record.state, record.completed) == (State.COMPLETED, ASKED + WAITED)
        assert record.expires == ASKED + WAITED + HOUR_MICROS


@each_colour
def test_a_batch_too(file: Watched, colour: str) -> None:
    with file.store(colour) as do:
        batch = [claim(key, lease=LEASE, now=None) for key in "abc"]
        replies = file.waited(lambda: do.many(batch), "BEGIN IMMEDIATE")
        assert [record_of(reply).lease_until for reply in replies] == [ASKED + WAITED + duration_to_micros(LEASE)] * 3


@each_colour
def test_the_time_that_an_operation_brings_is_taken(file: Watched, colour: str) -> None:
    with file.store(colour) as do:
        reply = file.waited(lambda: do(claim("k", lease=LEASE, now=7)), "INSERT")
        assert record_of(reply).lease_until == reply.now + duration_to_micros(LEASE) < ASKED
