"""A journal of keys on disk: written before anything is sent, so that a process that dies knows what it was about.

One SQLite file, which many threads and processes may share. One row for each logical call, in one of three states:

    planned     it has a key, and surely was never sent. Left by `send`
    sent        it may have arrived. Left by `answered`, or by `unsent` if no connection was made after all
    answered    the server has said its last word on this key. Left by nobody; pruned when it is old

The journal never decides who may run: the server does. What it adds is memory: the key that was exchanged, the request
that a key stands for, and how old a key is. It holds no bodies, no headers and no query; its file is the owner's alone.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from retrysafe.client.errors import KeyTooOld, RetriesError
from retrysafe.core.times import duration_to_micros
from retrysafe.errors import FingerprintMismatch, StoreUnavailable

CallState = Literal["planned", "sent", "answered"]

TABLE_SQL = """
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY,
    operation TEXT NOT NULL,
    call TEXT NOT NULL,
    key TEXT NOT NULL,
    rotations INTEGER NOT NULL DEFAULT 0,
    fingerprint BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('planned', 'sent', 'answered')),
    sends INTEGER NOT NULL,
    first_sent INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    status INTEGER
) WITHOUT ROWID
"""
INDEX_SQL = "CREATE INDEX IF NOT EXISTS calls_updated ON calls (updated)"
COLUMNS = "id, operation, call, key, rotations, fingerprint, state, sends, first_sent, updated, status"

PRUNE_EVERY_CALLS = 1_000
MAX_PRUNE_ROWS = 1_000


class PlannedCall(NamedTuple):
    """What is about to be sent."""

    id: str
    operation: str
    call: str
    key: str
    fingerprint: bytes
    """Empty for a stream, which nobody can look at twice."""


class Entry(NamedTuple):
    """One logical call, as the journal knows it. Times are microseconds since 1970."""

    id: str
    operation: str
    call: str
    key: str
    rotations: int
    fingerprint: bytes
    state: CallState
    sends: int
    first_sent: int
    updated: int
    status: int | None


class Journal:
    """`keep`: how long answered calls are remembered; 30 days. Calls without an answer stay until you `forget` them.

    A name that is used again after that is a new call to the journal, so `keep` is longer than any server's key life.
    """

    def __init__(self, path: str | Path, *, keep: float | timedelta = 30 * 24 * 3600.0, timeout: float = 30.0) -> None:
        self.path = Path(path)
        self._keep = duration_to_micros(keep)
        if self._keep <= 0:
            raise RetriesError("keep", keep, "give seconds or a timedelta above zero")
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._planned = 0

    # What a call does -----------------------------------------------------------------------------

    def record_send(self, plan: PlannedCall, now: int, key_life: float) -> Entry:
        """Note that this call is about to be sent. The entry says with which key; it is on disk when this returns."""
        with self._transaction() as db:
            known = _find(db, plan.id)
            if known is None:
                values = (plan.id, plan.operation, plan.call, plan.key, 0, plan.fingerprint, "sent", 1, now, now, None)
                db.execute(f"INSERT INTO calls ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                self._planned += 1
                if self._planned % PRUNE_EVERY_CALLS == 1:
                    _prune(db, now - self._keep)
                return Entry._make(values)
            if known.state == "planned":
                db.execute(
                    "UPDATE calls SET state = 'sent', sends = 1, first_sent = ?, updated = ?, fingerprint = ?"
                    " WHERE id = ?",
                    (now, now, plan.fingerprint, plan.id),
                )
            else:
                _check_resend(known, plan, now, key_life)
                db.execute("UPDATE calls SET sends = sends + 1, updated = ? WHERE id = ?", (now, plan.id))
            found = _find(db, plan.id)
            assert found is not None
            return found

    def record_unsent(self, id: str, now: int) -> None:
        """No connection was made. Only the sole sender may say so: another process may have sent it too."""
        with self._transaction() as db:
            db.execute(
                "UPDATE calls SET state = 'planned', sends = 0, updated = ?"
                " WHERE id = ? AND state = 'sent' AND sends = 1",
                (now, id),
            )

    def record_rotation(self, id: str, key: str, rotations: int, now: int) -> None:
        """A new key: under the old one it surely did not happen. If another process was first, its key stays."""
        with self._transaction() as db:
            db.execute(
                "UPDATE calls SET key = ?, rotations = ?, state = 'planned', sends = 0, status = NULL, updated = ?"
                " WHERE id = ? AND rotations < ?",
                (key, rotations, now, id, rotations),
            )

    def record_answer(self, id: str, status: int, now: int) -> None:
        with self._transaction() as db:
            db.execute("UPDATE calls SET state = 'answered', status = ?, updated = ? WHERE id = ?", (status, now, id))

    # What people do -------------------------------------------------------------------------------

    def unfinished(self) -> list[Entry]:
        """Calls that may have arrived and were never answered, oldest first."""
        with self._transaction() as db:
            rows = db.execute(f"SELECT {COLUMNS} FROM calls WHERE state = 'sent' ORDER BY first_sent").fetchall()
        return [Entry._make(row) for row in rows]

    def find(self, id: str) -> Entry | None:
        with self._transaction() as db:
            return _find(db, id)

    def entries(self, operation: str) -> list[Entry]:
        """All calls of an operation; nested names are written `outer / inner`."""
        with self._transaction() as db:
            rows = db.execute(
                f"SELECT {COLUMNS} FROM calls WHERE operation = ? ORDER BY first_sent, call", (operation,)
            ).fetchall()
        return [Entry._make(row) for row in rows]

    def forget(self, id: str) -> bool:
        """Remove one call, whatever its state: you have found out what became of it."""
        with self._transaction() as db:
            return db.execute("DELETE FROM calls WHERE id = ?", (id,)).rowcount == 1

    def prune(self, now: int) -> int:
        """Remove what is older than `keep` and was answered or never sent; at most 1,000. Returns how many."""
        with self._transaction() as db:
            return _prune(db, now - self._keep)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The file -------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction. IMMEDIATE: a deferred one that becomes a writer fails at once, whatever the timeout."""
        try:
            with self._lock:
                db = self._open()
                try:
                    db.execute("BEGIN IMMEDIATE")
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    # Closing rolls back, also after a COMMIT that failed half way; the next call opens it anew.
                    self._connection = None
                    db.close()
                    raise
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"the journal {str(self.path)!r} cannot be used ({error}), so nothing was sent: make the file and its "
                "folder writable, or do without a journal"
            ) from error

    def _open(self) -> sqlite3.Connection:
        # A connection that came through a fork must not be touched: its locks belong to the parent.
        if self._connection is None or self._pid != os.getpid():
            self._connection, self._pid = _connect(self.path, self._timeout), os.getpid()
        return self._connection


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    with suppress(OSError):  # what is wrong with the place, SQLite says better
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # a commit is on the disk before the request is on the wire
        db.execute(TABLE_SQL)
        db.execute(INDEX_SQL)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _find(db: sqlite3.Connection, id: str) -> Entry | None:
    row = db.execute(f"SELECT {COLUMNS} FROM calls WHERE id = ?", (id,)).fetchone()
    return None if row is None else Entry._make(row)


def _check_resend(known: Entry, plan: PlannedCall, now: int, key_life: float) -> None:
    """Whether a call that may have arrived may be sent again."""
    if known.fingerprint and plan.fingerprint and known.fingerprint != plan.fingerprint:
        raise FingerprintMismatch(known.key, known.first_sent)
    if now - known.first_sent >= duration_to_micros(key_life):
        raise KeyTooOld(
            known.operation,
            known.call,
            known.key,
            first_sent=known.first_sent,
            life=key_life,
            status=known.status,
        )


def _prune(db: sqlite3.Connection, before: int) -> int:
    return db.execute(
        "DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE updated < ? AND state <> 'sent' LIMIT ?)",
        (before, MAX_PRUNE_ROWS),
    ).rowcount
