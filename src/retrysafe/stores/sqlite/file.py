"""One SQLite file: a single writing connection, reading connections beside it.

Traps this avoids (RELIABILITY.md section 6): a deferred transaction that upgrades to writing fails at once
despite the busy timeout, so every write begins IMMEDIATE; many connections setting WAL at the same moment
lock each other out, so it is set once, with patience, before anything else; `synchronous` is FULL, so a
commit is on the disk before anybody is told "yours".

The host's clock is the store's clock: it is read after the write lock is held, so that whoever waited for
the lock does not judge a lease, or begin one, by the time it began to wait (clock.py).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.urls import safe_url
from retrysafe.errors import SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreURLError
from retrysafe.stores.base import Capabilities, Plan, follow
from retrysafe.stores.sql import migrations, rows
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, parse_number_option, split_options
from retrysafe.stores.sql.plans import SqlPlans, sort_by_id
from retrysafe.stores.sqlite import clock

R = TypeVar("R")

CAPABILITIES = Capabilities(
    name="sqlite", durable=True, shared=True, transactions=True, clock="host", outbox=True, lists_by_id=True
)

DIALECT = Dialect(package="retrysafe.stores.sqlite", now=":now", empty="x''", least="min", greatest="max")
"""For a user's connection: the time is sent along, because its transaction holds the write lock already."""

OWN_DIALECT = replace(DIALECT, now=f"coalesce(:now, {clock.FUNCTION_NAME}())")
"""For our own connections: a lone write takes the lock in its first step, so only the statement itself can ask late."""

_OPTIONS = frozenset({"table", "timeout"})


class SqliteLocation(NamedTuple):
    path: str
    names: TableNames
    timeout: float


def parse_url(url: str) -> SqliteLocation:
    """`sqlite:///app.db` (relative), `sqlite:////var/lib/app.db` (absolute), `?table=` and `?timeout=` seconds."""
    plain, options = split_options(url, _OPTIONS)
    rest = plain.partition("://")[2]
    host, slash, path = rest.partition("/")
    if host or not slash or not path:
        raise StoreURLError(f"{safe_url(url)!r} names no file; write sqlite:///app.db, or sqlite:////full/path/app.db")
    if "?" in path:
        raise StoreURLError(f"{safe_url(url)!r} has options SQLite does not know; there are table= and timeout=")
    path = unquote(path)
    if path == ":memory:":
        raise StoreURLError(
            f"{safe_url(url)!r}: a database in memory is lost with its connection; use memory:// or a file"
        )
    return SqliteLocation(
        path, build_names(options.get("table", DEFAULT_PREFIX)), parse_number_option(options, "timeout", 30.0)
    )


class SqliteFile:
    """The file, its connections and its lock. Both colours stand on it."""

    def __init__(self, path: str | Path, *, table: str = DEFAULT_PREFIX, timeout: float = 30.0) -> None:
        self.path = str(path)
        self.names = build_names(table)
        self.plans = SqlPlans(OWN_DIALECT, self.names)
        self._by_id = f"SELECT {', '.join(rows.COLUMNS)} FROM {self.names.keys} WHERE id = ?"
        self._timeout = timeout
        self._lock = threading.Lock()
        self._readers: deque[clock.ClockConnection] = deque()
        self._writer: clock.ClockConnection | None = None
        self._ready = False

    @classmethod
    def from_url(cls, url: str) -> SqliteFile:
        at = parse_url(url)
        return cls(at.path, table=at.names.bare, timeout=at.timeout)

    def execute(self, op: Op[R]) -> R:
        """Run one operation; each of its statements is a transaction of its own."""
        self.prepare()
        if isinstance(op, Claim):
            seen: Any = self.try_read_claim(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return follow(self.plans.plan_without_read(op), self.send)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Run operations in one transaction: one commit for all, or none happened."""
        self.prepare()
        return self._in_write_transaction(lambda connection: self._execute_each(connection, ops)) if ops else []

    def _execute_each(self, connection: clock.ClockConnection, ops: Sequence[Op[Any]]) -> list[Any]:
        replies: list[Any] = [None] * len(ops)
        send = partial(_run, connection)
        for place, op in sort_by_id(ops):
            replies[place] = follow(self.plans.plan_without_read(op), send)
        return replies

    def try_read_claim(self, op: Claim) -> ClaimReply | None:
        """A claim that only has to be read: a replay or a refusal. None: it has to write, or nothing is open yet.

        So a replay neither waits for the writer nor for a batch that is on its way to the disk. Written out, without a
        plan: each claim comes by here, and that a new key is not there is all it wants to know.
        """
        if not self._ready:
            return None
        row = self._on_reader(lambda connection: connection.execute(self._by_id, (op.id,)).fetchone())
        if row is None:
            return None
        now = clock.read_host_clock() if op.now is None else op.now
        record = rows.read_record(row)
        grant = decide_grant(record, op, now)
        if grant is None or grant is Grant.OWN:
            return ClaimReply(grant is Grant.OWN, record, now)
        return None

    def send(self, statement: Statement) -> list[Any]:
        return self.write(statement) if statement.writes else self.read(statement)

    def read(self, statement: Statement) -> list[Any]:
        return self._on_reader(lambda connection: _run(connection, statement))

    def _on_reader(self, look: Callable[[clock.ClockConnection], R]) -> R:
        """On a connection of its own: readers and the writer do not wait for each other."""
        try:
            connection = self._take_reader()
            try:
                return look(connection)
            finally:
                self._readers.append(connection)
        except (sqlite3.Error, UnicodeError) as error:
            raise translate_error(error, self.path) from error

    def _take_reader(self) -> clock.ClockConnection:
        try:
            return self._readers.pop()  # without asking first: another thread may take the last one in between
        except IndexError:
            return self.connect()

    def write(self, statement: Statement) -> list[Any]:
        """One statement, which SQLite commits by itself: it takes the write lock first and has committed when its last
        row is fetched, as `BEGIN IMMEDIATE` and `COMMIT` around it would have it, without two more calls."""
        with self._lock:
            try:
                return _run(self._open_writer(), statement)
            except (sqlite3.Error, UnicodeError) as error:
                raise translate_error(error, self.path) from error

    def prepare(self) -> None:
        """Create the file and its tables at first use: an embedded store needs no separate step."""
        if not self._ready and not self._is_up_to_date():
            self.migrate()
        self._ready = True

    def _is_up_to_date(self) -> bool:
        """Only a look: migrating takes the write lock, and somebody may hold it in a long transaction."""
        if not Path(self.path).exists():
            return False
        version = f"SELECT value FROM {self.names.meta} WHERE name = 'version'"
        try:
            found = self.read(Statement(version, {}, writes=False))
        except SchemaMissing:
            return False
        return bool(found) and int(found[0][0]) >= migrations.latest_version(DIALECT, self.names)

    def migrate(self) -> list[str]:
        self._make_folder()
        plan: Plan[Statement, list[str]] = migrations.upgrade(DIALECT, self.names)
        applied = self._in_write_transaction(lambda connection: follow(plan, lambda sent: _run(connection, sent)))
        self._ready = True
        return applied

    def _make_folder(self) -> None:
        folder = Path(self.path).absolute().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"{self.path}: its folder {folder} cannot be made ({error}); make it, or point the URL elsewhere"
            ) from error

    def close(self) -> None:
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()
        while self._readers:
            self._readers.pop().close()
        self._ready = False

    def _in_write_transaction(self, work: Callable[[clock.ClockConnection], R]) -> R:
        """Under the write lock of this process, then of the file; commit at the end, or nothing."""
        with self._lock:
            try:
                connection = self._open_writer()
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    done = work(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, UnicodeError) as error:
                raise translate_error(error, self.path) from error
        return done

    def _open_writer(self) -> clock.ClockConnection:
        if self._writer is None:
            self._writer = self.connect()
        return self._writer

    def connect(self) -> clock.ClockConnection:
        """A connection of its own, set as all of ours are."""
        connection = sqlite3.connect(
            self.path,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            factory=clock.ClockConnection,
        )
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                _set_wal(connection, self._timeout)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


def _set_wal(connection: clock.ClockConnection, timeout: float) -> None:
    """Switching to WAL wants the file to itself for a moment, and does not honour the busy timeout."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _run(connection: clock.ClockConnection, statement: Statement) -> list[Any]:
    connection.moment.reset()
    return connection.execute(statement.sql, statement.values).fetchall()


def translate_error(error: sqlite3.Error | UnicodeError, path: str) -> StoreError:
    """sqlite3's errors as ours."""
    if isinstance(error, sqlite3.Error):
        return translate_sqlite_error(error, path)
    # Half a surrogate pair: refused by the driver before anything was written.
    return StoreError(f"{path}: a value of this operation cannot be stored: {error}; nothing was done")


def translate_sqlite_error(error: sqlite3.Error, path: str) -> StoreError:
    """What an SQLite error means for the operation that met it."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(
            f"{path}: another writer held the file for the whole timeout; retry, or raise ?timeout="
        )
    if name.startswith("SQLITE_IOERR"):
        return StoreUnclear(f"{path}: the disk failed ({error}); look at the file system")
    if name == "SQLITE_FULL":
        return StoreUnavailable(f"{path}: the disk is full; nothing was written. Make room and retry")
    if name.startswith("SQLITE_CANTOPEN") and Path(path).is_dir():
        return StoreUnavailable(f"{path}: is a folder; point the URL at a file in it")
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreUnavailable(f"{path}: cannot be opened ({error}); check that the folder exists and is writable")
    if name.startswith("SQLITE_READONLY"):
        return StoreUnavailable(f"{path}: is read-only; check its permissions and those of its folder")
    if name == "SQLITE_NOTADB":
        return StoreUnavailable(f"{path}: is not an SQLite database; point the URL at another file")
    if "no such table" in str(error):
        return SchemaMissing(f"{path} has no retrysafe tables ({error})", f"sqlite:///{path}")
    return StoreError(f"{path}: {name}: {error}")
