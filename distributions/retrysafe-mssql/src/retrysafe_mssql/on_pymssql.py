"""A transaction on a pymssql connection with autocommit on.

Without autocommit the driver begins a transaction with the connection, and another one after each commit. A transaction
is then always open, and an empty one looks like one with writes in it. Such a connection is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pymssql

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import DialectName, Rows
from retrysafe_mssql.dialect import DIALECT
from retrysafe_mssql.protocol import BEGIN, COMMIT, ROLLBACK, bind_values, plan_batches, read_last_rows

FIX = (
    "commit or roll back first, and turn autocommit on: without it the driver keeps a transaction open all the time. "
    "Or pass a factory: tx=lambda: pymssql.connect(…, autocommit=True)"
)


class PymssqlTx:
    """An open transaction on a pymssql connection."""

    dialect = DIALECT
    dialect_name: DialectName = "mssql"

    def __init__(self, connection: Any) -> None:
        self.handle = connection

    def send(self, statement: Statement) -> Rows:
        return list(follow(plan_batches(statement), lambda text: self._execute_text(text, statement.values)))

    def _execute_text(self, text: str, values: Mapping[str, Any]) -> Rows:
        with self.handle.cursor(as_dict=False) as cursor:  # plain rows, whatever the connection is set to
            cursor.execute(text, bind_values(values)) if values else cursor.execute(text)
            return list(read_last_rows(cursor))

    def flush(self) -> None:
        """A connection buffers nothing."""


@contextmanager
def connection(given: Any) -> Iterator[PymssqlTx]:
    tx = PymssqlTx(given)
    if not given.autocommit_state or tx.send(Statement("SELECT @@TRANCOUNT", {}))[0][0]:
        raise NestedTransaction("the pymssql Connection", FIX)
    tx.send(BEGIN)
    try:
        yield tx
        tx.send(COMMIT)
    except BaseException:
        with suppress(pymssql.Error):  # a broken connection has nothing to roll back
            tx.send(ROLLBACK)
        raise
