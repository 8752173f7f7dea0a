"""The sync colour of MySQL and MariaDB, through PyMySQL: a connection per operation, a commit per statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pymysql

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnclear
from retrysafe.stores.base import follow
from retrysafe.stores.mysql import schema
from retrysafe.stores.mysql.dialect import CAPABILITIES, DIALECT, Location
from retrysafe.stores.mysql.errors import WORDS, meaning
from retrysafe.stores.mysql.pool import Connect, Connection, kept
from retrysafe.stores.mysql.talking import BEGIN, COMMIT, ROLLBACK, Heard, Rows, in_step, packets, read
from retrysafe.stores.sql.attempts import attempted
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT, names
from retrysafe.stores.sql.plans import Plans, by_id

R = TypeVar("R")


class MysqlStore:
    """Made from a URL, or over your own function that connects, which is asked for each new connection."""

    capabilities = CAPABILITIES
    mixes = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(
        self, connect: Connect, *, table: str = DEFAULT, pool: int = 10, pool_timeout: float = 5.0, url: str = "URL"
    ) -> None:
        self.names = names(table)
        self._url = url
        self._plans = Plans(DIALECT, self.names)
        self._pool = kept(connect, pool, pool_timeout)

    @classmethod
    def from_url(cls, at: Location) -> MysqlStore:
        connect = partial(pymysql.connect, **at.connect)
        return cls(connect, table=at.names.bare, pool=at.pool, pool_timeout=at.pool_timeout, url=at.url)

    def execute(self, op: Op[R]) -> R:
        return self._retrying(lambda say: follow(self._plans.of(op), lambda statement: say([statement])[0]))

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one transaction; sorted by id, so that two batches wait for each other in the same order."""
        return self._retrying(lambda say: self._together(say, ops), batch=True) if ops else []

    def _together(self, say: Say, ops: Sequence[Op[Any]]) -> list[Any]:
        ordered = by_id(ops)
        say([BEGIN])
        try:
            found = follow(in_step([self._plans.of(op) for _, op in ordered]), say)
            say([COMMIT])
        except StoreUnclear:
            raise  # nobody listens any more: the server rolls back by itself, unless the commit was heard
        except Exception:
            say([ROLLBACK])
            raise
        replies: list[Any] = [None] * len(ops)
        for (place, _), reply in zip(ordered, found, strict=True):
            replies[place] = reply
        return replies

    def migrate(self) -> list[str]:
        return self._retrying(lambda say: follow(schema.upgrade(self.names), lambda statement: say([statement])[0]))

    def close(self) -> None:
        self._pool.close()

    def _retrying(self, work: Callable[[Say], R], batch: bool = False) -> R:
        return attempted(self._pool, lambda connection: work(partial(_say, connection, self._url, batch)), WORDS)


Say = Callable[[Sequence[Statement]], list[Rows]]


def _say(connection: Connection, url: str, batch: bool, statements: Sequence[Statement]) -> list[Rows]:
    """Statements in, the rows of each out."""
    try:
        with connection.cursor() as cursor:
            return follow(packets(statements, cursor.mogrify), lambda packet: _hear(cursor, packet))
    except Exception as error:
        found = meaning(error, url, batch)
        if found is error:
            raise  # already one of ours: it must not become its own cause
        raise found from error


def _hear(cursor: pymysql.cursors.Cursor, packet: str) -> Heard:
    answers: list[Rows] = []
    try:
        cursor.execute(packet)
        while True:
            answers.append(read(cursor.fetchall() if cursor.description else None, cursor.rowcount))
            if not cursor.nextset():
                return Heard(answers, None)
    except pymysql.MySQLError as error:
        return Heard(answers, error)
