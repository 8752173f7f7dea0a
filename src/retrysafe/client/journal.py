"""The journal of keys on disk. It is written before a request is sent, so that after a crash the next process uses the
same key.

It is one SQLite file, which many threads and processes may share. It has one row per logical call, in one of three
states:

    planned     the call has a key and was never sent. `record_send` moves it to sent
    sent        the request may have arrived. `record_answer` moves it to answered, `record_unsent` back to planned if
                no connection was made
    answered    the server gave its final answer for this key. The row is pruned when it is old

The journal does not decide what may be executed: the server does. The journal stores rotated keys, the request that a
key belongs to, and the age of a key. It holds no bodies, no headers and no query, and only its owner can read the file.
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
    """A call that is about to be sent."""

    id: str
    operation: str
    call: str
    key: str
    fingerprint: bytes
    """Empty for a stream, which can be read only once."""


class Entry(NamedTuple):
    """One logical call in the journal. Times are microseconds since 1970."""

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
    """`keep`: how long answered calls stay in the journal; 30 days. Calls without an answer stay until you `forget`
    them.

    If an operation name is used again after that, the journal takes it for a new call. So make `keep` longer than the
    time for which the server keeps keys.
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

    # For the retry flow ---------------------------------------------------------------------------

    def record_send(self, plan: PlannedCall, now: int, key_life: float) -> Entry:
        """Write that this call is about to be sent, and return its entry with the key to use. It is on disk on
        return."""
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
        """No connection was made: back to planned. Only if this was the only send: another process may have sent it
        too."""
        with self._transaction() as db:
            db.execute(
                "UPDATE calls SET state = 'planned', sends = 0, updated = ?"
                " WHERE id = ? AND state = 'sent' AND sends = 1",
                (now, id),
            )

    def record_rotation(self, id: str, key: str, rotations: int, now: int) -> None:
        """Store a new key, because nothing happened under the old one. If another process rotated first, its key
        stays."""
        with self._transaction() as db:
            db.execute(
                "UPDATE calls SET key = ?, rotations = ?, state = 'planned', sends = 0, status = NULL, updated = ?"
                " WHERE id = ? AND rotations < ?",
                (key, rotations, now, id, rotations),
            )

    def record_answer(self, id: str, status: int, now: int) -> None:
        """Store the status of the final answer."""
        with self._transaction() as db:
            db.execute("UPDATE calls SET state = 'answered', status = ?, updated = ? WHERE id = ?", (status, now, id))

    # For people -----------------------------------------------------------------------------------

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
        """Remove one call in any state, after you have found out how it ended. False if there is no such call."""
        with self._transaction() as db:
            return db.execute("DELETE FROM calls WHERE id = ?", (id,)).rowcount == 1

    def prune(self, now: int) -> int:
        """Remove calls older than `keep` that were answered or never sent, at most 1,000. Returns the number
        removed."""
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
        """One transaction. IMMEDIATE: a deferred transaction that starts to write fails at once, without using the
        timeout."""
        try:
            with self._lock:
                db = self._open()
                try:
                    db.execute("BEGIN IMMEDIATE")
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    # Closing rolls back, also after a COMMIT that failed halfway. The next call opens a new connection.
                    self._connection = None
                    db.close()
                    raise
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"the journal {str(self.path)!r} cannot be used ({error}), so nothing was sent: make the file and its "
                "folder writable, or use no journal"
            ) from error

    def _open(self) -> sqlite3.Connection:
        # A connection from before a fork must not be used or closed: its locks belong to the parent process.
        if self._connection is None or self._pid != os.getpid():
            self._connection, self._pid = _connect(self.path, self._timeout), os.getpid()
        return self._connection


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite reports the same problem with a better message
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # a commit is on disk before the request is sent
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
    """Raise if a call that may have arrived must not be sent again: another request, or a key that is too old."""
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
