"""SQLAlchemy 2: Session, sessionmaker, scoped_session, Engine and Connection.

Our statements go straight to the session's connection, not through the session: they must not set off an autoflush
or an event hook. The session's transaction is begun and ended by hand, so that a commit in the middle is
met as what it is (TransactionSplit) rather than as SQLAlchemy's complaint about a closed context manager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, TextClause, event, text
from sqlalchemy.orm import Session

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.transactions.base import MYSQL_NAMED, POSTGRES, SQLITE, Rows, dialect_for_vendor, fill_now
from retrysafe.transactions.mysql_lock import LOCK_PARAMETER, build_release_sql, plan_steps, read_rows
from retrysafe.transactions.write_lock import take_write_lock

FIX = (
    "commit, roll back or close it first (a mere query begins a transaction), or pass the sessionmaker or engine "
    "instead"
)


@lru_cache(maxsize=256)
def build_clause(sql: str) -> TextClause:
    return text(sql)


DIALECTS: dict[str, Dialect] = {"postgres": POSTGRES, "sqlite": SQLITE, "mysql": MYSQL_NAMED}


class MysqlLock:
    """MySQL's lock, given back on the connection that holds it: by us, if it is still ours when the transaction is
    over; else when it goes back to its pool, which a Session's does at the commit, before anybody else gets it."""

    def __init__(self) -> None:
        self._on: Connection | None = None

    def record_lock(self, on: Connection, statement: Statement) -> None:
        if LOCK_PARAMETER in statement.values:
            on.connection.info[LOCK_INFO_KEY] = statement.values[LOCK_PARAMETER]
            event.listen(on.engine.pool, "checkin", unlock_at_checkin)  # the same again is ignored
            self._on = on

    def release(self) -> None:
        on = self._on
        if on is not None and not on.closed and not on.invalidated:
            unlock(on.connection, on.connection.info)


LOCK_INFO_KEY = "retrysafe_lock"


def unlock_at_checkin(raw: Any, record: Any) -> None:
    if raw is not None:
        unlock(raw, record.info)


def unlock(raw: Any, info: Any) -> None:
    lock = info.pop(LOCK_INFO_KEY, None)
    if lock is None:
        return
    with suppress(Exception):  # a connection that broke has nothing to give back: the server did it
        cursor = raw.cursor()
        cursor.execute(build_release_sql(lock))
        cursor.close()


def read_step_rows(result: CursorResult[Any]) -> Rows:
    return read_rows(result.all() if result.returns_rows else None, result.rowcount)


class CommitWatcher:
    """What the user's own ending was: `rollback(); raise` in a body is a failure like any other, `commit(); raise`
    splits it. `seen` is None where nobody tells (a COMMIT by statement, a rollback of a bare connection)."""

    def __init__(self, watched: Session | Connection) -> None:
        self.seen: bool | None = None
        self._watched = watched
        self._listeners: dict[str, Callable[[Any], None]] = (
            {"after_commit": self._on_commit, "after_rollback": self._on_rollback}
            if isinstance(watched, Session)
            else {"commit": self._on_connection_commit}
        )
        for name, listener in self._listeners.items():
            event.listen(watched, name, listener)

    def _on_commit(self, session: Session) -> None:
        if not session.in_nested_transaction():  # the end of a savepoint commits nothing
            self.seen = True

    def _on_rollback(self, _: Any) -> None:
        self.seen = bool(self.seen)

    def _on_connection_commit(self, _: Any) -> None:
        """Told before it is sent: from then on it may have taken place."""
        self.seen = True

    def unwatch(self) -> None:
        for name, listener in self._listeners.items():
            event.remove(self._watched, name, listener)


class SqlalchemyTx:
    """`handle` is a Session or a Connection; `connect` gives the connection it speaks on."""

    def __init__(self, handle: Any, connect: Callable[[], Connection]) -> None:
        self.handle = handle
        self._connect = connect
        self.dialect_name = dialect_for_vendor(connect().dialect.name)
        self.dialect: Dialect = DIALECTS[self.dialect_name]
        self._mysql_lock = MysqlLock()
        self._commits = CommitWatcher(handle)
        self._first = connect()

    @property
    def committed(self) -> bool | None:
        return self._commits.seen

    def send_plainly(self, statement: Statement) -> Rows:
        """A session whose flush failed lends its connection no more; the one it began on is there still."""
        result = self._first.execute(build_clause(statement.sql), dict(statement.values))
        return [tuple(row) for row in result] if result.returns_rows else []

    def send(self, statement: Statement) -> Rows:
        on = self._connect()
        if self.dialect_name == "mysql":
            self._mysql_lock.record_lock(on, statement)
            return follow(
                plan_steps(statement),
                lambda step: read_step_rows(on.execute(build_clause(step), dict(statement.values))),
            )
        result = on.execute(build_clause(statement.sql), fill_now_for(self.dialect_name, statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    def unlock(self) -> None:
        self._commits.unwatch()
        self._mysql_lock.release()

    def flush(self) -> None:
        if isinstance(self.handle, Session):
            self.handle.flush()

    def lock(self) -> None:
        if self.dialect_name == "sqlite":
            follow(take_write_lock(begun=is_begun(self._connect())), self.send)


def fill_now_for(dialect_name: str, statement: Statement) -> dict[str, Any]:
    return fill_now(statement.values) if dialect_name == "sqlite" else dict(statement.values)


def is_begun(on: Connection) -> bool:
    """Whether the driver is in a transaction already; without an event hook SQLite's is not before the first write."""
    return bool(on.connection.driver_connection.in_transaction)  # type: ignore[union-attr]  # sqlite3's or aiosqlite's


@contextmanager
def session(given: Session) -> Iterator[SqlalchemyTx]:
    with _begin_tx(given, given.connection, "the SQLAlchemy Session") as tx:
        yield tx


@contextmanager
def connection(given: Connection) -> Iterator[SqlalchemyTx]:
    with _begin_tx(given, lambda: given, "the SQLAlchemy Connection") as tx:
        yield tx


@contextmanager
def _begin_tx(given: Session | Connection, connect: Callable[[], Connection], name: str) -> Iterator[SqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction(name, FIX)
    given.begin()
    tx = None
    try:
        tx = SqlalchemyTx(given, connect)
        tx.lock()
        yield tx
        given.commit()
    except BaseException:
        given.rollback()
        raise
    finally:
        if tx is not None:
            tx.unlock()


@contextmanager
def engine(given: Engine) -> Iterator[SqlalchemyTx]:
    with given.connect() as taken, connection(taken) as tx:
        yield tx


@contextmanager
def maker(given: Callable[[], Session]) -> Iterator[SqlalchemyTx]:
    with given() as made, session(made) as tx:
        yield tx


@contextmanager
def scoped(given: Callable[[], Session]) -> Iterator[SqlalchemyTx]:
    """The session belongs to its scope, which closes it (`remove()`)."""
    with session(given()) as tx:
        yield tx
