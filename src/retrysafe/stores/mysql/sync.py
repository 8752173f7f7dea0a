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
from retrysafe.stores.mysql.dialect import CAPABILITIES, DIALECT, MysqlLocation
from retrysafe.stores.mysql.errors import ERROR_FACTORIES, translate_error
from retrysafe.stores.mysql.pool import Connect, Connection, build_pool
from retrysafe.stores.mysql.protocol import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    PacketReply,
    Rows,
    merge_plans,
    plan_packets,
    read_rows,
)
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import SqlPlans, sort_by_id
from retrysafe.stores.sql.retrying import run_with_retries

R = TypeVar("R")


class MysqlStore:
    """Made from a URL, or over your own function that connects, which is asked for each new connection."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(
        self,
        connect: Connect,
        *,
        table: str = DEFAULT_PREFIX,
        pool: int = 10,
        pool_timeout: float = 5.0,
        url: str = "URL",
    ) -> None:
        self.names = build_names(table)
        self._url = url
        self._plans = SqlPlans(DIALECT, self.names)
        self._pool = build_pool(connect, pool, pool_timeout)

    @classmethod
    def from_url(cls, at: MysqlLocation) -> MysqlStore:
        connect = partial(pymysql.connect, **at.connect)
        return cls(connect, table=at.names.bare, pool=at.pool, pool_timeout=at.pool_timeout, url=at.url)

    def execute(self, op: Op[R]) -> R:
        return self._with_retries(
            lambda say: follow(self._plans.plan_operation(op), lambda statement: say([statement])[0])
        )

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one transaction; sorted by id, so that two batches wait for each other in the same order."""
        return self._with_retries(lambda say: self._execute_in_transaction(say, ops), batch=True) if ops else []

    def _execute_in_transaction(self, say: Send, ops: Sequence[Op[Any]]) -> list[Any]:
        ordered = sort_by_id(ops)
        say([BEGIN])
        try:
            found = follow(merge_plans([self._plans.plan_operation(op) for _, op in ordered]), say)
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
        return self._with_retries(lambda say: follow(schema.upgrade(self.names), lambda statement: say([statement])[0]))

    def close(self) -> None:
        self._pool.close()

    def _with_retries(self, work: Callable[[Send], R], batch: bool = False) -> R:
        return run_with_retries(
            self._pool, lambda connection: work(partial(_send, connection, self._url, batch)), ERROR_FACTORIES
        )


Send = Callable[[Sequence[Statement]], list[Rows]]


def _send(connection: Connection, url: str, batch: bool, statements: Sequence[Statement]) -> list[Rows]:
    """Statements in, the rows of each out."""
    try:
        with connection.cursor() as cursor:
            return follow(plan_packets(statements, cursor.mogrify), lambda packet: _receive(cursor, packet))
    except Exception as error:
        found = translate_error(error, url, batch)
        if found is error:
            raise  # already one of ours: it must not become its own cause
        raise found from error


def _receive(cursor: pymysql.cursors.Cursor, packet: str) -> PacketReply:
    answers: list[Rows] = []
    try:
        cursor.execute(packet)
        while True:
            answers.append(read_rows(cursor.fetchall() if cursor.description else None, cursor.rowcount))
            if not cursor.nextset():
                return PacketReply(answers, None)
    except pymysql.MySQLError as error:
        return PacketReply(answers, error)
