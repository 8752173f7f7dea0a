"""Adapter for SQLAlchemy 2: Session, sessionmaker, scoped_session, Engine and Connection.

Our statements go straight to the session's connection, not through the session: they must not cause an autoflush or
run an event hook. The session's transaction is begun and ended by method calls, not by a context manager: after a
commit in the middle the caller gets TransactionSplit, not SQLAlchemy's error about a closed context manager.
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
from retrysafe.transactions.hand_endings import watch_connection
from retrysafe.transactions.locks import LOCK_PARAMETER, build_release_sql, plan_steps, read_rows, take_write_lock

NESTED_FIX = (
    "commit, roll back or close it first (a mere query begins a transaction), or pass the sessionmaker or engine "
    "instead"
)


@lru_cache(maxsize=256)
def build_clause(sql: str) -> TextClause:
    return text(sql)


DIALECTS: dict[str, Dialect] = {"postgres": POSTGRES, "sqlite": SQLITE, "mysql": MYSQL_NAMED}


class MysqlLock:
    """MySQL's advisory lock, released on the connection that holds it. If we still have the connection after the
    transaction, we release the lock. Otherwise an event hook does when the connection returns to its pool, which for a
    Session is at the commit, before any other code gets the connection."""

    def __init__(self) -> None:
        self._on: Connection | None = None

    def record_lock(self, on: Connection, statement: Statement) -> None:
        if LOCK_PARAMETER in statement.values:
            on.connection.info[LOCK_INFO_KEY] = statement.values[LOCK_PARAMETER]
            event.listen(on.engine.pool, "checkin", unlock_at_checkin)  # listening twice has no effect
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
    with suppress(Exception):  # the connection is lost: the server has released the lock
        cursor = raw.cursor()
        cursor.execute(build_release_sql(lock))
        cursor.close()


def read_step_rows(result: CursorResult[Any]) -> Rows:
    return read_rows(result.all() if result.returns_rows else None, result.rowcount)


class CommitWatcher:
    """Watches whether the user's code ends the transaction itself. `rollback(); raise` in a body is a failure like any
    other, `commit(); raise` splits the transaction. `seen` is True after a commit, False after a rollback, and None if
    SQLAlchemy reported neither (a COMMIT as a statement, a rollback of a bare connection). The driver's connection is
    watched, too, for statements that end a transaction; a session gives it back when its transaction ends."""

    def __init__(self, watched: Session | Connection, first: Connection) -> None:
        self.seen: bool | None = None
        self._watched = watched
        self._endings = watch_connection(first.connection.driver_connection)
        self._listeners: dict[str, Callable[..., None]] = (
            {"after_commit": self._on_commit, "after_rollback": self._on_rollback, "after_begin": self._on_begin}
            if isinstance(watched, Session)
            else {"commit": self._on_connection_commit}
        )
        for name, listener in self._listeners.items():
            event.listen(watched, name, listener)

    @property
    def committed(self) -> bool | None:
        return self._endings.committed or self.seen

    def _on_commit(self, session: Session) -> None:
        if not session.in_nested_transaction():  # releasing a savepoint commits nothing
            self.seen = True
            self._endings.close()

    def _on_rollback(self, _: Any) -> None:
        self.seen = bool(self.seen or self._endings.committed)
        self._endings.close()

    def _on_begin(self, session: Session, transaction: Any, connection: Connection) -> None:
        """The session begins another transaction. It may be on another connection."""
        endings = self._endings = watch_connection(connection.connection.driver_connection, ended=1)
        event.listen(connection, "rollback", lambda _: endings.close())  # before it is sent: it commits nothing

    def _on_connection_commit(self, _: Any) -> None:
        """SQLAlchemy calls this before it sends the commit: from now on it may have taken place."""
        self.seen = True

    def unwatch(self) -> None:
        self._endings.close()
        for name, listener in self._listeners.items():
            event.remove(self._watched, name, listener)


class SqlalchemyTx:
    """`handle` is a Session or a Connection; `connect` returns the connection that it uses."""

    def __init__(self, handle: Any, connect: Callable[[], Connection]) -> None:
        self.handle = handle
        self._connect = connect
        self.dialect_name = dialect_for_vendor(connect().dialect.name)
        self.dialect: Dialect = DIALECTS[self.dialect_name]
        self._mysql_lock = MysqlLock()
        self._first = connect()
        self._commits = CommitWatcher(handle, self._first)

    @property
    def committed(self) -> bool | None:
        return self._commits.committed

    def send_direct(self, statement: Statement) -> Rows:
        """Send on the first connection of the transaction: a session whose flush failed does not give out its
        connection any more."""
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
    """Whether the driver is in a transaction already. Without an event hook SQLite's begins at the first write."""
    return bool(on.connection.driver_connection.in_transaction)  # type: ignore[union-attr]  # sqlite3's or aiosqlite's


@contextmanager
def begin_on_session(given: Session) -> Iterator[SqlalchemyTx]:
    with _begin_tx(given, given.connection, "the SQLAlchemy Session") as tx:
        yield tx


@contextmanager
def begin_on_connection(given: Connection) -> Iterator[SqlalchemyTx]:
    with _begin_tx(given, lambda: given, "the SQLAlchemy Connection") as tx:
        yield tx


@contextmanager
def _begin_tx(given: Session | Connection, connect: Callable[[], Connection], name: str) -> Iterator[SqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction(name, NESTED_FIX)
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
def begin_on_engine(given: Engine) -> Iterator[SqlalchemyTx]:
    with given.connect() as taken, begin_on_connection(taken) as tx:
        yield tx


@contextmanager
def begin_on_sessionmaker(given: Callable[[], Session]) -> Iterator[SqlalchemyTx]:
    with given() as made, begin_on_session(made) as tx:
        yield tx


@contextmanager
def begin_on_scoped_session(given: Callable[[], Session]) -> Iterator[SqlalchemyTx]:
    """The session belongs to its scope: `remove()` closes it, we do not."""
    with begin_on_session(given()) as tx:
        yield tx
