"""Adapter for PyMySQL: a connection to MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import SERVER_STATUS
from pymysql.cursors import Cursor

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import MYSQL, DialectName, Rows
from retrysafe.transactions.hand_endings import watch_connection
from retrysafe.transactions.locks import LOCK_PARAMETER, build_release_sql, plan_steps, read_rows

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

NESTED_FIX = "commit or roll back first (with autocommit off a mere query begins a transaction), or pass a factory"


class PymysqlTx:
    dialect = MYSQL
    dialect_name: DialectName = "mysql"

    def __init__(self, connection: Connection) -> None:
        self.handle = connection
        self.endings = watch_connection(connection)
        self._lock: int | None = None

    @property
    def committed(self) -> bool | None:
        return self.endings.committed

    def send(self, statement: Statement) -> Rows:
        self._lock = statement.values.get(LOCK_PARAMETER, self._lock)
        with self.endings.pause():
            return follow(plan_steps(statement), lambda step: self._execute_step(step, statement.values))

    def _execute_step(self, step: str, values: Mapping[str, Any]) -> Rows:
        with self.handle.cursor(Cursor) as cursor:  # plain rows, whatever cursor class the user has chosen
            cursor.execute(step, values or None)
            return read_rows(cursor.fetchall() if cursor.description else None, cursor.rowcount)

    def flush(self) -> None:
        """A connection has no pending objects."""

    def unlock(self) -> None:
        """Release the advisory lock. If the connection was lost, the server has released it."""
        if self._lock is not None and self.handle.open:
            with suppress(pymysql.MySQLError), self.handle.cursor(Cursor) as cursor:
                cursor.execute(build_release_sql(self._lock))


@contextmanager
def begin_on_connection(given: Connection) -> Iterator[PymysqlTx]:
    if given.open and given.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:  # type: ignore[attr-defined]  # stubs
        raise NestedTransaction("the PyMySQL Connection", NESTED_FIX)
    given.begin()
    tx = PymysqlTx(given)
    try:
        yield tx
        given.commit()
    except BaseException:
        with suppress(pymysql.MySQLError):  # the connection is lost: the server has rolled back
            given.rollback()
        raise
    finally:
        tx.endings.close()
        tx.unlock()
