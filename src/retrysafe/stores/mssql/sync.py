"""The sync colour of SQL Server, through pymssql: a connection per operation, a commit per batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnclear
from retrysafe.stores.base import follow
from retrysafe.stores.mssql import schema
from retrysafe.stores.mssql.dialect import CAPABILITIES, DIALECT, MssqlLocation
from retrysafe.stores.mssql.errors import ERROR_FACTORIES, translate_error
from retrysafe.stores.mssql.pool import build_pool
from retrysafe.stores.mssql.protocol import BEGIN, COMMIT, ROLLBACK, Rows, bind_values, plan_batches, read_last_rows
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.plans import SqlPlans, sort_by_id
from retrysafe.stores.sql.retrying import run_with_retries

R = TypeVar("R")
Send = Callable[[Statement], Rows]


class MssqlStore:
    """Made from a URL."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, at: MssqlLocation) -> None:
        self.names = at.names
        self._url = at.url
        self._plans = SqlPlans(DIALECT, at.names)
        self._pool = build_pool(at.connect, at.pool, at.pool_timeout)

    def execute(self, op: Op[R]) -> R:
        return self._with_retries(lambda say: follow(self._plans.plan_operation(op), say))

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one transaction; sorted by id, so that two batches wait for each other in the same order."""

        def execute_each(say: Send) -> list[Any]:
            replies: list[Any] = [None] * len(ops)
            for place, op in sort_by_id(ops):
                replies[place] = follow(self._plans.plan_operation(op), say)
            return replies

        return self._with_retries(lambda say: in_transaction(say, execute_each), batch=True) if ops else []

    def migrate(self) -> list[str]:
        return self._with_retries(
            lambda say: in_transaction(say, lambda same: follow(schema.upgrade(self.names), same))
        )

    def close(self) -> None:
        self._pool.close()

    def _with_retries(self, work: Callable[[Send], R], batch: bool = False) -> R:
        return run_with_retries(
            self._pool, lambda connection: work(partial(_send, connection, self._url, batch)), ERROR_FACTORIES
        )


def in_transaction(say: Send, work: Callable[[Send], R]) -> R:
    """In one transaction."""
    say(BEGIN)
    try:
        done = work(say)
        say(COMMIT)
    except StoreUnclear:
        raise  # nobody listens any more: the server rolls back by itself, unless the commit was heard
    except Exception:
        say(ROLLBACK)
        raise
    return done


def _send(connection: Any, url: str, batch: bool, statement: Statement) -> Rows:
    try:
        with connection.cursor() as cursor:
            return follow(plan_batches(statement), lambda text: _receive(cursor, text, statement))
    except Exception as error:
        found = translate_error(error, url, batch)
        if found is error:
            raise  # already one of ours: it must not become its own cause
        raise found from error


def _receive(cursor: Any, text: str, statement: Statement) -> Rows:
    cursor.execute(text, bind_values(statement.values)) if statement.values else cursor.execute(text)
    return read_last_rows(cursor)
