"""Somebody else's session on a server, in whose transaction rows of the store are locked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg
import pymysql
from psycopg import sql

from retrysafe.stores.mysql.dialect import parse_url

IDLE_SECONDS = 120
"""The server ends a session that is idle for so long: who would wait for its rows without a limit fails then instead of
hanging."""


class RowHolder(Protocol):
    """One session. It has no transaction open until it locks rows."""

    def lock(self, table: str, ids: Sequence[bytes]) -> None: ...
    def let_go(self) -> None: ...
    def ask(self) -> None:
        """One round trip."""

    def count_waiting(self, table: str) -> int:
        """How many statements with this table wait for a row now."""

    def close(self) -> None: ...


class PostgresHolder:
    def __init__(self, server_url: str) -> None:
        limit = f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
        self._connection = psycopg.connect(server_url, options=limit, autocommit=True)

    def lock(self, table: str, ids: Sequence[bytes]) -> None:
        query = sql.SQL("SELECT 1 FROM {} WHERE id = ANY(%s) ORDER BY id FOR UPDATE")
        self._connection.execute("BEGIN")
        found = self._connection.execute(query.format(sql.Identifier(f"{table}_keys")), [list(ids)])
        assert found.rowcount == len(ids)

    def let_go(self) -> None:
        self._connection.rollback()

    def ask(self) -> None:
        self._connection.execute("SELECT 1")

    def count_waiting(self, table: str) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        (count,) = self._connection.execute(query, [f"%{table}%"]).fetchone() or (0,)
        return int(count)

    def close(self) -> None:
        self._connection.close()


class MysqlHolder:
    """Of MySQL or MariaDB. In latin1 everything can be read, also the statements with bytes that a status shows."""

    def __init__(self, server_url: str) -> None:
        self._connection: Any = pymysql.connect(
            **{**parse_url(server_url).connect, "charset": "latin1"}, autocommit=True
        )
        self._query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._query(f"SET SESSION wait_timeout = {IDLE_SECONDS}")

    def lock(self, table: str, ids: Sequence[bytes]) -> None:
        self._query("START TRANSACTION")
        query = f"SELECT 1 FROM `{table}_keys` FORCE INDEX (PRIMARY) WHERE id IN %s ORDER BY id FOR UPDATE"
        assert len(self._query(query, [list(ids)])) == len(ids)

    def let_go(self) -> None:
        self._connection.rollback()

    def ask(self) -> None:
        self._query("SELECT 1")

    def count_waiting(self, table: str) -> int:
        # Not information_schema.innodb_trx: who asks it often gets an old answer, for as long as it asks.
        [(_, _, status)] = self._query("SHOW ENGINE INNODB STATUS")
        now = status.partition("\nTRANSACTIONS\n")[2]
        return len(re.findall(rf"^RECORD LOCKS .*{table}_keys.* waiting", now, re.MULTILINE))

    def close(self) -> None:
        self._connection.close()

    def _query(self, query: str, values: Sequence[Any] | None = None) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall())


HOLDERS: dict[str, Callable[[str], RowHolder]] = {
    "postgres": PostgresHolder,
    "mysql": MysqlHolder,
    "mariadb": MysqlHolder,
}
