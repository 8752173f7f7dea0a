"""Adapter for sqlite3 of the standard library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import SQLITE, DialectName, Rows, fill_now
from retrysafe.transactions.locks import take_write_lock

NESTED_FIX = (
    "commit or roll back first, or pass the path of the file. A connection made with autocommit=False is in a "
    "transaction all the time: leave that argument out"
)


class Sqlite3Tx:
    dialect = SQLITE
    dialect_name: DialectName = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.handle = connection

    @property
    def committed(self) -> bool | None:
        """The connection of a file is not lost by itself. If it is closed, the user's code closed it, and may have
        committed before."""
        return None if is_open(self.handle) else True

    def send(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(statement.sql, fill_now(statement.values)).fetchall()
        finally:
            cursor.close()

    def flush(self) -> None:
        """A connection has no pending objects."""


@contextmanager
def begin_on_connection(given: sqlite3.Connection) -> Iterator[Sqlite3Tx]:
    if given.in_transaction:
        raise NestedTransaction("the sqlite3 Connection", NESTED_FIX)
    tx = Sqlite3Tx(given)
    try:
        follow(take_write_lock(begun=False), tx.send)  # an interruption may come after its BEGIN
        yield tx
        given.execute("COMMIT")
    except BaseException:
        roll_back(given)
        raise


def roll_back(given: sqlite3.Connection) -> None:
    # Not rollback(): under autocommit=True that does nothing, although our BEGIN opened a transaction.
    if is_open(given) and given.in_transaction:
        given.execute("ROLLBACK")


def is_open(given: sqlite3.Connection) -> bool:
    """Whether the user's code has not closed the connection."""
    try:
        given.in_transaction  # noqa: B018  # raises on a closed connection
    except sqlite3.ProgrammingError:
        return False
    return True


@contextmanager
def begin_on_path(given: str | Path) -> Iterator[Sqlite3Tx]:
    # A web server may open it in one thread and use it in another, but never in two at once.
    made = sqlite3.connect(given, isolation_level=None, check_same_thread=False)
    with closing(made) as opened, begin_on_connection(opened) as tx:
        yield tx
