"""SQLAlchemy 2: Session, sessionmaker, scoped_session, Engine and Connection.

Our statements go straight to the session's connection, not through the session: they must not set off an autoflush
or an event hook. The session's transaction is begun and ended by hand, so that a commit in the middle is
met as what it is (TransactionSplit) rather than as SQLAlchemy's complaint about a closed context manager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.orm import Session

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.transactions.base import POSTGRES, SQLITE, Rows, dialect_named, timed
from retrysafe.transactions.write_lock import locked

FIX = (
    "commit, roll back or close it first (a mere query begins a transaction), or pass the sessionmaker or engine "
    "instead"
)


@lru_cache(maxsize=256)
def clause(sql: str) -> TextClause:
    return text(sql)


class SqlalchemyTx:
    """`handle` is a Session or a Connection; `connect` gives the connection it speaks on."""

    def __init__(self, handle: Any, connect: Callable[[], Connection]) -> None:
        self.handle = handle
        self._connect = connect
        self.dialect_name = dialect_named(connect().dialect.name)
        self.dialect: Dialect = POSTGRES if self.dialect_name == "postgres" else SQLITE

    def send(self, statement: Statement) -> Rows:
        result = self._connect().execute(clause(statement.sql), timed_for(self.dialect_name, statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    def flush(self) -> None:
        if isinstance(self.handle, Session):
            self.handle.flush()

    def lock(self) -> None:
        if self.dialect_name == "sqlite":
            follow(locked(begun=begun(self._connect())), self.send)


def timed_for(dialect_name: str, statement: Statement) -> dict[str, Any]:
    return timed(statement.values) if dialect_name == "sqlite" else dict(statement.values)


def begun(on: Connection) -> bool:
    """Whether the driver is in a transaction already; without an event hook SQLite's is not before the first write."""
    return bool(on.connection.driver_connection.in_transaction)  # type: ignore[union-attr]  # sqlite3's or aiosqlite's


@contextmanager
def session(given: Session) -> Iterator[SqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction("the SQLAlchemy Session", FIX)
    given.begin()
    try:
        tx = SqlalchemyTx(given, given.connection)
        tx.lock()
        yield tx
        given.commit()
    except BaseException:
        given.rollback()
        raise


@contextmanager
def connection(given: Connection) -> Iterator[SqlalchemyTx]:
    if given.in_transaction():
        raise NestedTransaction("the SQLAlchemy Connection", FIX)
    given.begin()
    try:
        tx = SqlalchemyTx(given, lambda: given)
        tx.lock()
        yield tx
        given.commit()
    except BaseException:
        given.rollback()
        raise


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
