"""The SQL Server stores, through pymssql: a connection per operation, and a commit per batch.

The async store runs the sync one in as many threads as it has connections. aioodbc, the usual async driver, is threads
around pyodbc as well, and needs a driver that is installed on the system; pymssql brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnclear
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.plans import SqlPlans, sort_by_id
from retrysafe.stores.sql.retrying import run_with_retries
from retrysafe.stores.threaded import ThreadedStore
from retrysafe_mssql import schema
from retrysafe_mssql.dialect import CAPABILITIES, DIALECT, MssqlLocation
from retrysafe_mssql.errors import ERROR_FACTORIES, translate_error
from retrysafe_mssql.pool import build_pool
from retrysafe_mssql.protocol import BEGIN, COMMIT, ROLLBACK, Rows, bind_values, plan_batches, read_last_rows

R = TypeVar("R")
SendStatement = Callable[[Statement], Rows]


class MssqlStore:
    """A sync store, made from a URL."""

    capabilities = CAPABILITIES
    recreates_tables = True

    def __init__(self, at: MssqlLocation) -> None:
        self.names = at.names
        self._url = at.url
        self._plans = SqlPlans(DIALECT, at.names)
        self._pool = build_pool(at.connect, at.pool, at.pool_timeout)

    def execute(self, op: Op[R]) -> R:
        return self._with_retries(lambda send: follow(self._plans.plan_operation(op), send))

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """All operations in one transaction, sorted by id, so that two batches lock their rows in the same order."""

        def execute_each(send: SendStatement) -> list[Any]:
            replies: list[Any] = [None] * len(ops)
            for place, op in sort_by_id(ops):
                replies[place] = follow(self._plans.plan_operation(op), send)
            return replies

        return self._with_retries(lambda send: run_in_transaction(send, execute_each), batch=True) if ops else []

    def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        return self._with_retries(
            lambda send: run_in_transaction(send, lambda inner: follow(schema.upgrade(self.names, recreate), inner))
        )

    def close(self) -> None:
        self._pool.close()

    def _with_retries(self, work: Callable[[SendStatement], R], batch: bool = False) -> R:
        return run_with_retries(
            self._pool, lambda connection: work(partial(_send, connection, self._url, batch)), ERROR_FACTORIES
        )


class AsyncMssqlStore(ThreadedStore):
    """An async store, made from a URL. If a caller is cancelled, its operation still runs to its end."""

    def __init__(self, at: MssqlLocation) -> None:
        super().__init__(MssqlStore(at), threads=at.pool, name="retrysafe-mssql")
        self.names = at.names


def run_in_transaction(send: SendStatement, work: Callable[[SendStatement], R]) -> R:
    """Run `work` in one transaction."""
    send(BEGIN)
    try:
        done = work(send)
        send(COMMIT)
    except StoreUnclear:
        raise  # the connection broke: the server rolls back by itself, unless it has received the commit
    except Exception:
        send(ROLLBACK)
        raise
    return done


def _send(connection: Any, url: str, batch: bool, statement: Statement) -> Rows:
    try:
        with connection.cursor() as cursor:
            return follow(plan_batches(statement), lambda text: _receive(cursor, text, statement))
    except Exception as error:
        found = translate_error(error, url, batch)
        if found is error:
            raise  # an error of ours: it must not become its own cause
        raise found from error


def _receive(cursor: Any, text: str, statement: Statement) -> Rows:
    cursor.execute(text, bind_values(statement.values)) if statement.values else cursor.execute(text)
    return read_last_rows(cursor)
