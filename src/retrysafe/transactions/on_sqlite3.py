"""sqlite3 of the standard library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import SQLITE, DialectName, Rows, fill_now
from retrysafe.transactions.write_lock import take_write_lock

FIX = (
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
        """A file's connection does not break by itself: who closed it may have committed before."""
        return None if is_open(self.handle) else True

    def send(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(statement.sql, fill_now(statement.values)).fetchall()
        finally:
            cursor.close()

    def flush(self) -> None:
        """A connection holds nothing back."""


@contextmanager
def connection(given: sqlite3.Connection) -> Iterator[Sqlite3Tx]:
    if given.in_transaction:
        raise NestedTransaction("the sqlite3 Connection", FIX)
    tx = Sqlite3Tx(given)
    follow(take_write_lock(begun=False), tx.send)
    try:
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
    """Whether its user has left it open."""
    try:
        given.in_transaction  # noqa: B018  # a closed one refuses to tell
    except sqlite3.ProgrammingError:
        return False
    return True


@contextmanager
def path(given: str | Path) -> Iterator[Sqlite3Tx]:
    # A web server's threads take turns with it: opened in one, used in another, never in two at once.
    made = sqlite3.connect(given, isolation_level=None, check_same_thread=False)
    with closing(made) as opened, connection(opened) as tx:
        yield tx
