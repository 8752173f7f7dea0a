"""One DuckDB file, in the one process that may have it open: a writing connection, reading connections beside it.

Writers of this process take turns (`_turn`): DuckDB does not make one wait for another, it undoes the second. What is
left are conflicts with transactions on the user's own connections. Those that end soon are waited for by trying again;
a claim whose record is held for longer is Busy.

A commit is in the log (`<file>.wal`) and flushed before it is acknowledged. The host's clock is the store's clock: it
is read when the turn has come, so that whoever waited does not judge a lease by the time it began to wait.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import duckdb

from retrysafe.core.ops import Op
from retrysafe.errors import RetrySafeError, SchemaMissing, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused, Plan, follow
from retrysafe.stores.duckdb import forks
from retrysafe.stores.duckdb.batches import glance
from retrysafe.stores.duckdb.dialect import DIALECT, bound, parse_url
from retrysafe.stores.duckdb.errors import Conflict, forked, meaning, undone_too_often, unopened
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT, names
from retrysafe.stores.sql.plans import Held, Plans, by_id

R = TypeVar("R")
Connection: TypeAlias = duckdb.DuckDBPyConnection
Rows = list[Any]

PATIENCE = 1.0
"""Seconds a write is tried again while somebody's open transaction has the same record."""
PAUSE = (0.001, 0.01)
"""Seconds between two tries, drawn at random."""


class DuckdbFile:
    """The file and its connections. Both colours stand on it; several of these on one file share its turns."""

    def __init__(self, at: str | Path | Connection, *, table: str = DEFAULT) -> None:
        """`at` is a path, or a connection of yours, which stays yours to close."""
        self._yours = None if isinstance(at, str | Path) else at
        self.path = str(at) if isinstance(at, str | Path) else where(at)
        self._whole = os.path.realpath(self.path)
        self.names = names(table)
        self.plans = Plans(DIALECT, self.names)
        self._turn = forks.turn(self._whole)
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
        """Run one operation; each of its statements is a transaction of its own."""
        self.prepare()
        try:
            return follow(self.plans.of(op), self.send)
        except Held as held:
            raise undone_too_often(self.path, PATIENCE) from held

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Run operations in one transaction: one commit for all, or none happened."""
        self.prepare()
        only_read: list[Any] = follow(glance(self.plans.texts["lookup_many"], ops), self._reading)
        if None not in only_read:
            return only_read
        try:
            return self._writing(lambda connection: self._together(connection, ops))
        except Held as held:
            raise BatchRefused(
                "a key of this batch is held by an open transaction; send the operations one by one"
            ) from held

    def _together(self, connection: Connection, ops: Sequence[Op[Any]]) -> list[Any]:
        def each() -> list[Any]:
            send = partial(run, connection)
            replies: list[Any] = follow(glance(self.plans.texts["lookup_many"], ops), send)
            for place, op in by_id(ops):
                if replies[place] is None:
                    replies[place] = follow(self.plans.unread(op), send)
            return replies

        return in_transaction(connection, each)

    def send(self, statement: Statement) -> Rows:
        if statement.writes:
            return self._writing(lambda connection: run(connection, statement))
        return self._reading(statement)

    def _reading(self, statement: Statement) -> Rows:
        """On a connection of its own: readers and the writer do not wait for each other."""
        try:
            reader = self._readers.pop()  # without asking first: another thread may take the last one in between
        except IndexError:
            reader = self._open().cursor()
        try:
            rows = run(reader, statement)
        except Exception as error:
            raise self._read(error) from error
        self._readers.append(reader)
        return rows

    def _writing(self, work: Callable[[Connection], R]) -> R:
        """In turn; again, while somebody else's transaction is in the way."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._once(work)
            except Conflict as conflict:
                if time.monotonic() > deadline:
                    raise Held(str(conflict)) from conflict
            time.sleep(random.uniform(*PAUSE))  # with the turn given back: others may be able to go on

    def _once(self, work: Callable[[Connection], R]) -> R:
        with self._turn:
            if self._writer is None:
                self._writer = self._open().cursor()
            try:
                return work(self._writer)
            except Exception as error:
                raise self._read(error) from error

    def _read(self, error: Exception) -> Exception:
        """The error as one of ours. What DuckDB gave up, or what was closed under us, is opened anew next time."""
        if isinstance(error, RetrySafeError | Conflict):
            return error
        found = meaning(error, self.path)
        if isinstance(found, StoreUnclear):
            self.close()
        return found

    # Opening ----------------------------------------------------------------------------------

    def _open(self) -> Connection:
        if self._yours is not None:
            return self._yours
        with self._opening:
            if self._root is None:
                self._root = self._connect()
            return self._root

    def _connect(self) -> Connection:
        if forks.inherited(self._whole):
            raise forked(self.path)
        make_folder(self.path)
        try:
            connection = duckdb.connect(self.path)
        except duckdb.Error as error:
            raise unopened(error, self.path) from error
        forks.opened(self._whole, connection)
        return connection

    def prepare(self) -> None:
        """Create the file and its tables at first use: an embedded store needs no separate step."""
        if not self._ready and not self._up_to_date():
            self.migrate()
        self._ready = True

    def _up_to_date(self) -> bool:
        version = f"SELECT value FROM {self.names.meta} WHERE name = 'version'"
        try:
            found = self._reading(Statement(version, {}, writes=False))
        except SchemaMissing:
            return False
        return bool(found) and int(found[0][0]) >= migrations.latest(DIALECT, self.names)

    def migrate(self) -> list[str]:
        def upgrade(connection: Connection) -> list[str]:
            plan: Plan[Statement, list[str]] = migrations.upgrade(DIALECT, self.names)
            return in_transaction(connection, lambda: follow(plan, lambda sent: run(connection, sent)))

        try:
            applied = self._writing(upgrade)
        except Held as held:
            raise undone_too_often(self.path, PATIENCE) from held
        self._ready = True
        return applied

    def close(self) -> None:
        """The last connection of the process that is closed writes the log into the file."""
        with self._turn, self._opening:
            writer, self._writer = self._writer, None
            root, self._root = self._root, None
            self._ready = False
            while self._readers:
                _close(self._readers.pop())
            if writer is not None:
                _close(writer)
            if root is not None:
                forks.closed(self._whole, root)
                _close(root)


def in_transaction(connection: Connection, work: Callable[[], R]) -> R:
    connection.execute("BEGIN TRANSACTION")
    try:
        done = work()
        connection.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.Error):  # a commit that was refused has ended the transaction already
            connection.execute("ROLLBACK")
        raise
    return done


def run(connection: Connection, statement: Statement) -> Rows:
    values = bound(statement.sql, statement.values)
    if values.get("now", 0) is None:
        values["now"] = time.time_ns() // 1000
    return connection.execute(statement.sql, values or None).fetchall()


def where(connection: Connection) -> str:
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
