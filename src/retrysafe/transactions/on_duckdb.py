"""Adapter for DuckDB: a connection, or a cursor of one, which is a connection of its own to the same file.

DuckDB's transactions do not wait for each other. Two that write the same record both run. The second one is refused, at
the write or at its commit; its body runs again and finds the first one's answer. The lock of the key avoids most of
those runs. It is a lock of this process, because only one process can have the file open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb

from retrysafe.errors import NestedTransaction
from retrysafe.stores.duckdb import process
from retrysafe.stores.duckdb.dialect import DIALECT, bind_values
from retrysafe.stores.duckdb.errors import is_duplicate
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import DialectName, Rows, fill_now

NESTED_FIX = "commit or roll back first, or pass a factory: tx=connection.cursor makes one for each call"

LOCK_PARAMETER = "lock"
DATABASE_PATH_QUERY = "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"


class DuckdbTx:
    dialect = DIALECT
    dialect_name: DialectName = "duckdb"

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.handle = connection
        self._file = ""

    def send(self, statement: Statement) -> Rows:
        values = fill_now(bind_values(statement.sql, statement.values))
        if LOCK_PARAMETER in values:
            values[LOCK_PARAMETER] = int(process.try_lock((self._read_database_path(), values[LOCK_PARAMETER]), self))
        try:
            return list(self.handle.execute(statement.sql, values or None).fetchall())
        except duckdb.ConstraintException as error:
            if "ON CONFLICT" not in statement.sql or not is_duplicate(error):
                raise
            raise duckdb.TransactionException("Conflict on the key: it was committed meanwhile") from error

    def _read_database_path(self) -> str:
        """The path of the file. It is part of a lock's name, because a process may have several files open."""
        if not self._file:
            self._file = str(self.handle.execute(DATABASE_PATH_QUERY).fetchall()[0][0])
        return self._file

    def flush(self) -> None:
        """A connection has no pending objects."""


@contextmanager
def begin_on_connection(given: duckdb.DuckDBPyConnection) -> Iterator[DuckdbTx]:
    begin(given)
    tx = DuckdbTx(given)
    try:
        yield tx
        given.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.Error):  # a commit that was refused has ended the transaction already
            given.execute("ROLLBACK")
        raise
    finally:
        process.release_locks(tx)


def begin(given: duckdb.DuckDBPyConnection) -> None:
    try:
        given.execute("BEGIN TRANSACTION")
    except duckdb.TransactionException as error:
        raise NestedTransaction("the DuckDB connection", NESTED_FIX) from error
