"""Open a store for a test: empty, migrated, and nobody else's.

Memory, SQLite and Redis get a place of their own each time. PostgreSQL, MySQL, MariaDB, MongoDB and DuckDB keep one set
of tables per worker process, emptied each time: creating tables for each of some thousand tests would take longer than
the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import duckdb
import psycopg
import pymysql
import pytest
from psycopg import sql
from pymongo import MongoClient

from retrysafe.stores.mongo import settings as mongo
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing import Do
from tests.batching.crowd import Crowded
from tests.servers.dynamodb import client_of

Colour = Literal["sync", "async"]
Opener = Callable[[str, str], Do]

STORES = ("memory", "sqlite", "redis", "postgres", "mysql", "mariadb", "duckdb", "mongodb", "dynamodb")
SHARED_STORES = ("sqlite", "redis", "postgres", "mysql", "mariadb", "mongodb", "dynamodb")
"""Those that several processes may use at once."""
REDIS_KIN = ("redis8", "redis_cluster")
"""The Redis store once more, on another server and on a cluster of three; these go through what may differ there."""
COLOURS: tuple[Colour, ...] = ("sync", "async")


def with_option(url: str, name: str, value: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{name}={value}"


PATIENCE: dict[str, dict[str, str]] = {
    "postgres": {"pool_timeout": "60", "connect_timeout": "60"},
    "mysql": {"pool_timeout": "60"},
    "mariadb": {"pool_timeout": "60"},
    "mongodb": {"patience": "60", "serverSelectionTimeoutMS": "60000", "connectTimeoutMS": "60000"},
    **{name: {"socket_timeout": "60", "socket_connect_timeout": "60"} for name in ("redis", *REDIS_KIN)},
}
"""A store gives up on a silent server after some seconds. In tests the whole machine may stand still for longer, and a
server that is late is not down: those that ask for less say so in their own URL. DynamoDB's address has it already."""


def patient(store: str, url: str) -> str:
    for name, value in PATIENCE.get(store, {}).items():
        url = with_option(url, name, value)
    return url


def unique(prefix: str = "t") -> str:
    return f"{prefix}{uuid4().hex[:12]}"


def open_do(url: str, colour: str) -> Do:
    if colour == "batched":
        return Do.asynchronous(Crowded(open_async_store(url, batching=True)))
    return Do.sync(open_store(url)) if colour == "sync" else Do.asynchronous(open_async_store(url))


def open_migrated(url: str, colour: str) -> Do:
    do = open_do(url, colour)
    do.migrate()
    return do


def store_url(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> str:
    """An address where nothing is yet."""
    if store == "memory":
        return f"memory://{uuid4().hex}"
    if store == "sqlite":
        return f"sqlite:///{tmp_path / unique()}.db"
    if store == "duckdb":
        return f"duckdb:///{tmp_path / unique()}.duckdb"
    server = patient(store, request.getfixturevalue(f"{store}_url"))
    if store == "redis" or store in REDIS_KIN:
        return with_option(server, "prefix", unique())
    return with_option(server, {"mongodb": "collection"}.get(store, "table"), unique())


class PostgresTables:
    """The one set of tables a worker process uses, and the stores open on it."""

    def __init__(self, url: str) -> None:
        self.prefix = unique("contract_")
        self.url = with_option(patient("postgres", url), "table", self.prefix)
        self._admin = psycopg.connect(url, autocommit=True)
        self._open: dict[str, Do] = {}
        self._found: list[str] = []

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        self._found = self._found or self._tables()
        for table in self._found:
            self._admin.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        do = self._open[colour]
        return Do(do.capabilities, do, do.many, do.migrate, lambda: None)

    def _tables(self) -> list[str]:
        """Those with records in them: the ones that have an `id`, a `token` and a `state`."""
        rows = self._admin.execute(
            "SELECT table_name FROM information_schema.columns WHERE starts_with(table_name, %s) "
            "AND column_name IN ('id', 'token', 'state') GROUP BY table_name HAVING count(*) = 3",
            [self.prefix],
        ).fetchall()
        return [name for (name,) in rows]

    def close(self) -> None:
        for do in self._open.values():
            do.close()
        self._admin.close()


class MysqlTables:
    """The same on MySQL and on MariaDB."""

    def __init__(self, url: str) -> None:
        self.prefix = unique("contract_")
        self.url = with_option(patient("mysql", url), "table", self.prefix)
        self._admin = pymysql.connect(**parse_url(url).connect, autocommit=True)
        self._open: dict[str, Do] = {}

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        with self._admin.cursor() as cursor:
            for table in ("keys", "outbox"):
                cursor.execute(f"DELETE FROM `{self.prefix}_{table}`")
        do = self._open[colour]
        return Do(do.capabilities, do, do.many, do.migrate, lambda: None)

    def close(self) -> None:
        for do in self._open.values():
            do.close()
        self._admin.close()


class DuckdbTables:
    """The same in a DuckDB file: opening one and making its tables takes longer than a test."""

    def __init__(self, path: Path) -> None:
        self.url = f"duckdb:///{path}"
        self._path = path
        self._admin: duckdb.DuckDBPyConnection | None = None
        self._open: dict[str, Do] = {}

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        if self._admin is None:
            self._admin = duckdb.connect(str(self._path))
        for table in ("keys", "outbox"):
            self._admin.execute(f"DELETE FROM retrysafe_{table}")
        do = self._open[colour]
        return Do(do.capabilities, do, do.many, do.migrate, lambda: None)

    def close(self) -> None:
        for do in self._open.values():
            do.close()
        if self._admin is not None:
            self._admin.close()


class DynamoTable:
    """The same on DynamoDB."""

    def __init__(self, url: str) -> None:
        self.table = unique("contract_")
        self.url = with_option(url, "table", self.table)
        self._admin = client_of(url)
        self._open: dict[str, Do] = {}

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        while items := self._admin.scan(TableName=self.table, ProjectionExpression="id", Limit=25)["Items"]:
            gone = [{"DeleteRequest": {"Key": item}} for item in items]
            self._admin.batch_write_item(RequestItems={self.table: gone})
        do = self._open[colour]
        return Do(do.capabilities, do, do.many, do.migrate, lambda: None)

    def close(self) -> None:
        for do in self._open.values():
            do.close()
        self._admin.close()


class MongoCollections:
    """The same on MongoDB: making a collection with its indexes takes as long as a whole test."""

    def __init__(self, url: str) -> None:
        self.url = with_option(patient("mongodb", url), "collection", unique("contract_"))
        self._at = mongo.parse_url(self.url)
        self._admin: MongoClient[Any] = MongoClient(self._at.url)
        self._open: dict[str, Do] = {}

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        for collection in (self._at.names.keys, self._at.names.outbox):
            self._admin[self._at.database][collection].delete_many({})
        do = self._open[colour]
        return Do(do.capabilities, do, do.many, do.migrate, lambda: None)

    def close(self) -> None:
        for do in self._open.values():
            do.close()
        self._admin.close()
