"""Tables that one worker process makes once and empties before each test: creating them for each of some thousand
tests would take longer than the tests.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymysql
from psycopg import sql
from pymongo import MongoClient

from retrysafe.stores.mongo import settings as mongo
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.testing import Do
from tests.opening import open_migrated, patient, unique, with_option
from tests.servers.dynamodb import client_of


class Kept:
    """The stores open on them, one of each colour."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._open: dict[str, Do] = {}

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        self._clear()
        do = self._open[colour]
        return Do(do.capabilities, do, do.many, do.migrate, lambda: None)

    def close(self) -> None:
        for do in self._open.values():
            do.close()
        self._leave()

    def _clear(self) -> None:
        """Delete every record, beside the stores."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Close what `_clear` uses."""
        raise NotImplementedError


class PostgresTables(Kept):
    def __init__(self, url: str) -> None:
        self.prefix = unique("contract_")
        super().__init__(with_option(patient("postgres", url), "table", self.prefix))
        self._admin = psycopg.connect(url, autocommit=True)
        self._found: list[str] = []

    def _clear(self) -> None:
        self._found = self._found or self._tables()
        for table in self._found:
            self._admin.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))

    def _tables(self) -> list[str]:
        """Those with records or jobs in them: the ones that have an `id` and a `token`."""
        rows = self._admin.execute(
            "SELECT table_name FROM information_schema.columns WHERE starts_with(table_name, %s) "
            "AND column_name IN ('id', 'token') GROUP BY table_name HAVING count(*) = 2",
            [self.prefix],
        ).fetchall()
        return [name for (name,) in rows]

    def _leave(self) -> None:
        self._admin.close()


class MysqlTables(Kept):
    """On MySQL and on MariaDB."""

    def __init__(self, url: str) -> None:
        self.prefix = unique("contract_")
        super().__init__(with_option(patient("mysql", url), "table", self.prefix))
        self._admin = pymysql.connect(**parse_url(url).connect, autocommit=True)

    def _clear(self) -> None:
        with self._admin.cursor() as cursor:
            for table in ("keys", "outbox"):
                cursor.execute(f"DELETE FROM `{self.prefix}_{table}`")

    def _leave(self) -> None:
        self._admin.close()


class SqliteTables(Kept):
    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self._admin = sqlite3.connect(path, timeout=60, isolation_level=None)

    def _clear(self) -> None:
        self._admin.executescript("BEGIN; DELETE FROM retrysafe_keys; DELETE FROM retrysafe_outbox; COMMIT")

    def _leave(self) -> None:
        self._admin.close()


class DuckdbTables(Kept):
    def __init__(self, path: Path) -> None:
        super().__init__(f"duckdb:///{path}")
        self._path = path
        self._admin: duckdb.DuckDBPyConnection | None = None

    def _clear(self) -> None:
        if self._admin is None:  # not before the store has made the file
            self._admin = duckdb.connect(str(self._path))
        for table in ("keys", "outbox"):
            self._admin.execute(f"DELETE FROM retrysafe_{table}")

    def _leave(self) -> None:
        if self._admin is not None:
            self._admin.close()


class DynamoTable(Kept):
    def __init__(self, url: str) -> None:
        self.table = unique("contract_")
        super().__init__(with_option(url, "table", self.table))
        self._admin = client_of(url)

    def _clear(self) -> None:
        while items := self._admin.scan(TableName=self.table, ProjectionExpression="id", Limit=25)["Items"]:
            gone = [{"DeleteRequest": {"Key": item}} for item in items]
            self._admin.batch_write_item(RequestItems={self.table: gone})

    def _leave(self) -> None:
        self._admin.close()


class MongoCollections(Kept):
    def __init__(self, url: str) -> None:
        super().__init__(with_option(patient("mongodb", url), "collection", unique("contract_")))
        self._at = mongo.parse_url(self.url)
        self._admin: MongoClient[Any] = MongoClient(self._at.url)

    def _clear(self) -> None:
        for collection in (self._at.names.keys, self._at.names.outbox):
            self._admin[self._at.database][collection].delete_many({})

    def _leave(self) -> None:
        self._admin.close()


IN_FILES: dict[str, type[SqliteTables | DuckdbTables]] = {"sqlite": SqliteTables, "duckdb": DuckdbTables}
"""By the store's name, made from a path where nothing is yet."""

ON_SERVERS: dict[str, type[PostgresTables | MysqlTables | DynamoTable | MongoCollections]] = {
    "postgres": PostgresTables,
    "mysql": MysqlTables,
    "mariadb": MysqlTables,
    "dynamodb": DynamoTable,
    "mongodb": MongoCollections,
}
"""By the store's name, made from its server's URL."""
