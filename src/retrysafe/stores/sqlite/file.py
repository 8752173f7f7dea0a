"""One SQLite file: a single writing connection, reading connections beside it.

It avoids these traps. A deferred transaction that begins to write fails at once, whatever the busy timeout is: so every
write begins IMMEDIATE. Connections that set WAL mode at the same moment lock each other out: so WAL is set once, with
retries, before anything else. `synchronous` is FULL: a commit is on the disk before a claim is granted.

The host's clock is the store's clock. It is read while the write lock is held, so that an operation that waited for the
lock does not use the time from before its wait (connection.py).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.urls import safe_url
from retrysafe.errors import SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreURLError
from retrysafe.stores.base import Capabilities, Plan, follow
from retrysafe.stores.sql import migrations, rows, schema_state
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, parse_number_option, split_options
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.stores.sqlite.connection import CLOCK_FUNCTION, OwnConnection, build_row_query, read_host_clock
from retrysafe.stores.sqlite.usual import build_usual_writes, is_usual, write_many, write_one

R = TypeVar("R")

CAPABILITIES = Capabilities(
    name="sqlite",
    durable=True,
    shared=True,
    transactions=True,
    clock="host",
    outbox=True,
    lists_by_id=True,
    backlog="index",
    mixed_batches=True,
    has_install_id=True,
)

DIALECT = Dialect(
    package="retrysafe.stores.sqlite",
    now=":now",
    empty="x''",
    least="min",
    greatest="max",
    find_table="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{bare}'",
    find_columns="SELECT name FROM pragma_table_info('{bare}')",
)
"""For a user's connection. The time is a parameter, because the user's transaction holds the write lock already."""

OWN_DIALECT = replace(DIALECT, now=f"coalesce(:now, {CLOCK_FUNCTION}())")
"""For our own connections. A single write takes the lock in its first step, so the statement itself reads the clock."""

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


def has_tables(at: SqliteLocation) -> bool:
    """Whether the file has one of our tables. Other than a store, this makes nothing, and leaves the journal mode as it
    is."""
    where = f"file:{quote(os.path.abspath(at.path))}?mode=rw"
    try:
        with closing(sqlite3.connect(where, uri=True, timeout=at.timeout)) as connection:
            looks = [schema_state.find_table(DIALECT, at.names, table).sql for table in schema_state.LOSSES]
            return any(connection.execute(look).fetchone() for look in looks)
    except (sqlite3.Error, UnicodeError) as error:
        raise translate_error(error, at.path) from error


class SqliteFile:
    """The file, its connections and its lock, for the sync and the async store."""

    def __init__(self, path: str | Path, *, table: str = DEFAULT_PREFIX, timeout: float = 30.0) -> None:
        self.path = str(path)
        self.names = build_names(table)
        self.plans = SqlPlans(OWN_DIALECT, self.names)
        self._usual = build_usual_writes(self.plans.texts)
        self._by_id = build_row_query(self.names.keys)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._readers: deque[OwnConnection] = deque()
        self._writer: OwnConnection | None = None
        self._ready = False

    @classmethod
    def from_url(cls, url: str) -> SqliteFile:
        at = parse_url(url)
        return cls(at.path, table=at.names.bare, timeout=at.timeout)

    def execute(self, op: Op[R]) -> R:
        """Run one operation. Each of its statements is a transaction of its own."""
        self.prepare()
        if isinstance(op, Claim):
            reply: Any = self.try_read_claim(op)
            if reply is not None:
                return reply  # type: ignore[no-any-return]  # a claim's reply
        return self.execute_after_read(op)

    def execute_after_read(self, op: Op[R]) -> R:
        """Run an operation that the caller could not decide by a read (`try_read_claim`)."""
        if is_usual(op):
            reply: Any = self._on_writer(lambda connection: write_one(connection, self._usual[type(op)], op))
            if reply is not None:
                return reply  # type: ignore[no-any-return]  # the operation's reply
        return follow(self.plans.plan_without_read(op), self.send)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Run operations in one transaction: one commit for all, or none of them happened."""
        self.prepare()
        return self._run_in_write_transaction(lambda connection: self._execute_all(connection, ops)) if ops else []

    def _execute_all(self, connection: OwnConnection, ops: Sequence[Op[Any]]) -> list[Any]:
        """The usual writes first, by one call for each kind. The order does not matter: each operation is of another
        key, and no other writer is let in between."""
        found = self._execute_usual(connection, ops) if is_each_key_once(ops) else {}
        send = partial(_run, connection)
        for place, op in enumerate(ops):
            if place not in found:
                found[place] = follow(self.plans.plan_without_read(op), send)
        return [found[place] for place in range(len(ops))]

    def _execute_usual(self, connection: OwnConnection, ops: Sequence[Op[Any]]) -> dict[int, Any]:
        """The replies by the position of the operation."""
        found: dict[int, Any] = {}
        now = read_host_clock()
        for kind, write in self._usual.items():
            places = [place for place, op in enumerate(ops) if type(op) is kind and is_usual(op)]
            if places:
                replies = write_many(connection, write, [ops[place] for place in places], now)
                if replies is not None:
                    found.update(zip(places, replies, strict=True))
        return found

    def try_read_claim(self, op: Claim) -> ClaimReply | None:
        """A replay or a refusal. None if the claim has to write, or if the file is not open yet.

        A replay then waits neither for the writer nor for a batch in flight. The read is written out here, without a
        plan, because every claim runs it, and for a new key it only has to find that there is no row.
        """
        if not self._ready:
            return None
        try:
            connection = self._take_reader()
            try:
                row = connection.read_row(self._by_id, op.id)
            finally:
                self._readers.append(connection)
        except (sqlite3.Error, UnicodeError) as error:
            raise translate_error(error, self.path) from error
        if row is None:
            return None
        now = read_host_clock() if op.now is None else op.now
        record = rows.read_record(row)
        grant = decide_grant(record, op, now)
        if grant is None or grant is Grant.OWN:
            return ClaimReply(grant is Grant.OWN, record, now)
        return None

    def send(self, statement: Statement) -> list[Any]:
        return self.write(statement) if statement.writes else self.read(statement)

    def read(self, statement: Statement) -> list[Any]:
        return self._on_reader(lambda connection: _run(connection, statement))

    def _on_reader(self, look: Callable[[OwnConnection], R]) -> R:
        """Run `look` on a reading connection. Readers and the writer do not wait for each other."""
        try:
            connection = self._take_reader()
            try:
                return look(connection)
            finally:
                self._readers.append(connection)
        except (sqlite3.Error, UnicodeError) as error:
            raise translate_error(error, self.path) from error

    def _take_reader(self) -> OwnConnection:
        try:
            return self._readers.pop()  # no check first: another thread may take the last one in between
        except IndexError:
            return self.connect()

    def write(self, statement: Statement) -> list[Any]:
        """Run one statement, which SQLite commits by itself. SQLite takes the write lock first and has committed when
        the last row is fetched: the effect of `BEGIN IMMEDIATE` and `COMMIT`, without two more calls."""
        return self._on_writer(lambda connection: _run(connection, statement))

    def _on_writer(self, work: Callable[[OwnConnection], R]) -> R:
        with self._lock:
            try:
                return work(self._open_writer())
            except (sqlite3.Error, UnicodeError) as error:
                raise translate_error(error, self.path) from error

    def prepare(self) -> None:
        """Create the file and its tables at first use. An embedded store needs no separate step."""
        if not self._ready and not self._is_up_to_date():
            self.migrate()
        self._ready = True

    def _is_up_to_date(self) -> bool:
        """Whether the schema is up to date. This only reads: migrating takes the write lock, and a long transaction of
        the user may hold that."""
        if not Path(self.path).exists():
            return False
        try:
            found = self.read(schema_state.select_versions(DIALECT, self.names))
        except SchemaMissing:
            return False
        version, oldest_reader = schema_state.read_versions(found)
        known = migrations.latest_version(DIALECT, self.names)
        schema_state.refuse_unreadable(version, oldest_reader, known)
        return version >= known

    def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        self._make_folder()
        plan: Plan[Statement, list[str]] = migrations.upgrade(DIALECT, self.names, recreate=recreate)
        applied = self._run_in_write_transaction(lambda connection: follow(plan, lambda sent: _run(connection, sent)))
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

    def _run_in_write_transaction(self, work: Callable[[OwnConnection], R]) -> R:
        """Run `work` under the write lock of this process and of the file. Commit at the end, or roll back."""
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

    def _open_writer(self) -> OwnConnection:
        if self._writer is None:
            self._writer = self.connect()
        return self._writer

    def connect(self) -> OwnConnection:
        """A new connection with the settings that all our connections have."""
        connection = sqlite3.connect(
            self.path,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            factory=OwnConnection,
        )
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                _set_wal(connection, self._timeout)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


def _set_wal(connection: OwnConnection, timeout: float) -> None:
    """Switch to WAL mode, with retries: the switch needs the file alone for a moment and ignores the busy timeout."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def is_each_key_once(ops: Sequence[Any]) -> bool:
    """Otherwise the operations of one key have an order, and an operation without a key may see any of them."""
    ids = {getattr(op, "id", None) for op in ops}
    return len(ids) == len(ops) and None not in ids


def _run(connection: OwnConnection, statement: Statement) -> list[Any]:
    connection.moment.reset()
    return connection.execute(statement.sql, statement.values).fetchall()


def translate_error(error: sqlite3.Error | UnicodeError, path: str) -> StoreError:
    """An error of sqlite3 as one of ours."""
    if isinstance(error, sqlite3.Error):
        return translate_sqlite_error(error, path)
    # Half a surrogate pair. The driver refused it before anything was written.
    return StoreError(f"{path}: a value of this operation cannot be stored: {error}; nothing was done")


def translate_sqlite_error(error: sqlite3.Error, path: str) -> StoreError:
    """The error of ours for an error code of SQLite."""
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
