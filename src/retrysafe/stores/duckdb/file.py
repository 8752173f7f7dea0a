"""One DuckDB file, in the one process that may have it open: a writing connection, reading connections beside it.

The writers of this process take turns by a lock (`_write_lock`): DuckDB does not let a writer wait for another, it
rolls back the second one. What remains are conflicts with transactions on the user's own connections. The store retries
for LOCK_TIMEOUT_SECONDS; after that a claim of such a record is Busy.

A commit is in the log (`<file>.wal`) and flushed before it is acknowledged. The host's clock is the store's clock. It
is read while the write lock is held, so that a writer that waited does not use the time from before its wait.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import duckdb

from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import RetrySafeError, SchemaMissing, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused, Plan, follow
from retrysafe.stores.duckdb import process
from retrysafe.stores.duckdb.dialect import DIALECT, DuckdbLocation, bind_values, parse_url
from retrysafe.stores.duckdb.errors import Conflict, forked_error, lock_timeout_error, open_error, translate_error
from retrysafe.stores.sql import migrations, rows, schema_state
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import LockNotAvailable, SqlPlans, sort_by_id

R = TypeVar("R")
Connection: TypeAlias = duckdb.DuckDBPyConnection
Rows = list[Any]

LOCK_TIMEOUT_SECONDS = 1.0
"""How long a write is retried while an open transaction of the user has changed the same record."""
RETRY_PAUSE_SECONDS = (0.001, 0.01)
"""The pause between two tries, drawn at random from this range."""
MIN_BATCHED_CLAIMS = 2
"""From how many claims on a batch reads their records by one statement."""


def has_tables(at: DuckdbLocation) -> bool:
    """Whether the file has one of our tables. True, too, if it cannot be opened beside what has it open, here or in
    another process: who opens it as a store is told why."""
    looks = [schema_state.find_table(DIALECT, at.names, table).sql for table in schema_state.LOSSES]
    try:
        with duckdb.connect(at.path, read_only=True) as connection:
            return any(connection.execute(look).fetchone() for look in looks)
    except duckdb.Error:
        return True


class DuckdbFile:
    """The file and its connections, for the sync and the async store. Objects on one file share its write lock."""

    def __init__(self, at: str | Path | Connection, *, table: str = DEFAULT_PREFIX) -> None:
        """`at` is a path, or a connection of yours, which is not closed here."""
        self._user_connection = None if isinstance(at, str | Path) else at
        self.path = str(at) if isinstance(at, str | Path) else read_database_path(at)
        self._real_path = os.path.realpath(self.path)
        self.names = build_names(table)
        self.plans = SqlPlans(DIALECT, self.names)
        self._write_lock = process.get_write_lock(self._real_path)
        self._opening = threading.Lock()
        self._root: Connection | None = None
        self._writer: Connection | None = None
        self._readers: deque[Connection] = deque()
        self._ready = False

    @classmethod
    def from_url(cls, url: str) -> DuckdbFile:
        at = parse_url(url)
        return cls(at.path, table=at.names.bare)

    def execute(self, op: Op[R]) -> R:
        """Run one operation. Each of its statements is a transaction of its own."""
        self.prepare()
        try:
            return follow(self.plans.plan_operation(op), self.send)
        except LockNotAvailable as held:
            raise lock_timeout_error(self.path, LOCK_TIMEOUT_SECONDS) from held

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Run operations in one transaction: one commit for all, or none happened."""
        self.prepare()
        only_read: list[Any] = follow(plan_read_claims(self.plans.texts["lookup_many"], ops), self._read_statement)
        if None not in only_read:
            return only_read
        try:
            return self._write_with_retries(lambda connection: self._execute_in_transaction(connection, ops))
        except LockNotAvailable as held:
            raise BatchRefused(
                "a key of this batch is held by an open transaction; send the operations one by one"
            ) from held

    def _execute_in_transaction(self, connection: Connection, ops: Sequence[Op[Any]]) -> list[Any]:
        def execute_each() -> list[Any]:
            send = partial(run_statement, connection)
            replies: list[Any] = follow(plan_read_claims(self.plans.texts["lookup_many"], ops), send)
            for place, op in sort_by_id(ops):
                if replies[place] is None:
                    replies[place] = follow(self.plans.plan_without_read(op), send)
            return replies

        return run_in_transaction(connection, execute_each)

    def send(self, statement: Statement) -> Rows:
        if statement.writes:
            return self._write_with_retries(lambda connection: run_statement(connection, statement))
        return self._read_statement(statement)

    def _read_statement(self, statement: Statement) -> Rows:
        """Read on a connection beside the writer. Readers and the writer do not wait for each other."""
        try:
            reader = self._readers.pop()  # no check first: another thread may take the last one in between
        except IndexError:
            reader = self._open().cursor()
        try:
            found = run_statement(reader, statement)
        except Exception as error:
            raise self._translate_error(error) from error
        self._readers.append(reader)
        return found

    def _write_with_retries(self, work: Callable[[Connection], R]) -> R:
        """Run `work` under the write lock. Retry while a transaction of the user conflicts with it."""
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while True:
            try:
                return self._run_once(work)
            except Conflict as conflict:
                if time.monotonic() > deadline:
                    raise LockNotAvailable(str(conflict)) from conflict
            time.sleep(
                random.uniform(*RETRY_PAUSE_SECONDS)
            )  # without the write lock: other writers may succeed meanwhile

    def _run_once(self, work: Callable[[Connection], R]) -> R:
        with self._write_lock:
            if self._writer is None:
                self._writer = self._open().cursor()
            try:
                return work(self._writer)
            except Exception as error:
                raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> Exception:
        """The error as one of ours. After an unclear error the file is closed, and opened again at the next use."""
        if isinstance(error, RetrySafeError | Conflict):
            return error
        found = translate_error(error, self.path)
        if isinstance(found, StoreUnclear):
            self.close()
        return found

    # Opening ----------------------------------------------------------------------------------

    def _open(self) -> Connection:
        if self._user_connection is not None:
            return self._user_connection
        with self._opening:
            if self._root is None:
                self._root = self._connect()
            return self._root

    def _connect(self) -> Connection:
        if process.is_inherited(self._real_path):
            raise forked_error(self.path)
        make_folder(self.path)
        try:
            connection = duckdb.connect(self.path)
        except duckdb.Error as error:
            raise open_error(error, self.path) from error
        process.record_open(self._real_path, connection)
        return connection

    def prepare(self) -> None:
        """Create the file and its tables at first use. An embedded store needs no separate step."""
        if not self._ready and not self._is_up_to_date():
            self.migrate()
        self._ready = True

    def _is_up_to_date(self) -> bool:
        try:
            found = self._read_statement(schema_state.select_versions(DIALECT, self.names))
        except SchemaMissing:
            return False
        version, oldest_reader = schema_state.read_versions(found)
        known = migrations.latest_version(DIALECT, self.names)
        schema_state.refuse_unreadable(version, oldest_reader, known)
        return version >= known

    def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        def upgrade(connection: Connection) -> list[str]:
            plan: Plan[Statement, list[str]] = migrations.upgrade(DIALECT, self.names, recreate=recreate)
            return run_in_transaction(connection, lambda: follow(plan, lambda sent: run_statement(connection, sent)))

        try:
            applied = self._write_with_retries(upgrade)
        except LockNotAvailable as held:
            raise lock_timeout_error(self.path, LOCK_TIMEOUT_SECONDS) from held
        self._ready = True
        return applied

    def close(self) -> None:
        """Close all connections. When the last one closes, DuckDB writes the log into the file."""
        with self._write_lock, self._opening:
            writer, self._writer = self._writer, None
            root, self._root = self._root, None
            self._ready = False
            while self._readers:
                _close(self._readers.pop())
            if writer is not None:
                _close(writer)
            if root is not None:
                process.record_close(self._real_path, root)
                _close(root)


def plan_read_claims(text: str, ops: Sequence[Op[Any]]) -> Plan[Statement, list[ClaimReply | None]]:
    """A reply for each claim that is a replay or a refusal; None for all other operations.

    One statement reads all records of the batch, because DuckDB prepares a statement each time, and preparing is most
    of its cost. A batch runs this plan twice: before the transaction begins, and inside it under the write lock, where
    the records cannot change any more.
    """
    replies: list[ClaimReply | None] = [None] * len(ops)
    claims = {op.id: (place, op) for place, op in enumerate(ops) if isinstance(op, Claim)}
    if len(claims) < MIN_BATCHED_CLAIMS:
        return replies
    for row in (yield Statement(text, {"ids": list(claims)}, writes=False)):
        record = rows.read_record(row)
        place, op = claims[record.id]
        now = time.time_ns() // 1000 if op.now is None else op.now
        grant = decide_grant(record, op, now)
        if grant is None or grant is Grant.OWN:
            replies[place] = ClaimReply(grant is Grant.OWN, record, now)
    return replies


def run_in_transaction(connection: Connection, work: Callable[[], R]) -> R:
    connection.execute("BEGIN TRANSACTION")
    try:
        done = work()
        connection.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.Error):  # a refused commit has ended the transaction already
            connection.execute("ROLLBACK")
        raise
    return done


def run_statement(connection: Connection, statement: Statement) -> Rows:
    values = bind_values(statement.sql, statement.values)
    if values.get("now", 0) is None:
        values["now"] = time.time_ns() // 1000
    return connection.execute(statement.sql, values or None).fetchall()


def read_database_path(connection: Connection) -> str:
    """The file behind a connection."""
    found = (
        connection.cursor()
        .execute("SELECT path FROM duckdb_databases() WHERE database_name = current_database()")
        .fetchone()
    )
    if found is None or found[0] is None:
        raise StoreUnavailable(
            "this DuckDB connection has no file, and what is in memory is lost with the process; "
            "connect to one: duckdb.connect('app.duckdb')"
        )
    return str(found[0])


def make_folder(path: str) -> None:
    folder = Path(path).absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"{path}: its folder {folder} cannot be made ({error}); make it, or point the URL elsewhere"
        ) from error


def _close(connection: Connection) -> None:
    with suppress(duckdb.Error):
        connection.close()
