"""The sync colour of SQL Server, through pymssql: a connection per operation, a commit per batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnclear
from retrysafe.stores.base import follow
from retrysafe.stores.mssql import schema
from retrysafe.stores.mssql.dialect import CAPABILITIES, DIALECT, Location
from retrysafe.stores.mssql.errors import WORDS, meaning
from retrysafe.stores.mssql.pool import pool
from retrysafe.stores.mssql.talking import BEGIN, COMMIT, ROLLBACK, Rows, bound, heard, spoken
from retrysafe.stores.sql.attempts import attempted
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.plans import Plans, by_id

R = TypeVar("R")
Say = Callable[[Statement], Rows]


class MssqlStore:
    """Made from a URL."""

    capabilities = CAPABILITIES
    mixes = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, at: Location) -> None:
        self.names = at.names
        self._url = at.url
        self._plans = Plans(DIALECT, at.names)
        self._pool = pool(at.connect, at.pool, at.pool_timeout)

    def execute(self, op: Op[R]) -> R:
        return self._retrying(lambda say: follow(self._plans.of(op), say))

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one transaction; sorted by id, so that two batches wait for each other in the same order."""

        def each(say: Say) -> list[Any]:
            replies: list[Any] = [None] * len(ops)
            for place, op in by_id(ops):
                replies[place] = follow(self._plans.of(op), say)
            return replies

        return self._retrying(lambda say: together(say, each), batch=True) if ops else []

    def migrate(self) -> list[str]:
        return self._retrying(lambda say: together(say, lambda same: follow(schema.upgrade(self.names), same)))

    def close(self) -> None:
        self._pool.close()

    def _retrying(self, work: Callable[[Say], R], batch: bool = False) -> R:
        return attempted(self._pool, lambda connection: work(partial(_say, connection, self._url, batch)), WORDS)


def together(say: Say, work: Callable[[Say], R]) -> R:
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


def _say(connection: Any, url: str, batch: bool, statement: Statement) -> Rows:
    try:
        with connection.cursor() as cursor:
            return follow(spoken(statement), lambda text: _hear(cursor, text, statement))
    except Exception as error:
        found = meaning(error, url, batch)
        if found is error:
            raise  # already one of ours: it must not become its own cause
        raise found from error


def _hear(cursor: Any, text: str, statement: Statement) -> Rows:
    cursor.execute(text, bound(statement.values)) if statement.values else cursor.execute(text)
    return heard(cursor)
