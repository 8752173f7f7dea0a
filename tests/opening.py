"""Open a store for a test: empty, migrated, and nobody else's.

Memory, SQLite and Redis get a place of their own each time. PostgreSQL, MySQL and MariaDB keep one set of tables per
worker process, emptied each time: creating tables for each of some thousand tests would take longer than the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal
from uuid import uuid4

import psycopg
import pymysql
import pytest
from psycopg import sql

from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing import Do
from tests.batching.crowd import Crowded

Colour = Literal["sync", "async"]
Opener = Callable[[str, str], Do]

STORES = ("memory", "sqlite", "redis", "postgres", "mysql", "mariadb")
SHARED_STORES = ("sqlite", "redis", "postgres", "mysql", "mariadb")
"""Those that several processes may use at once."""
COLOURS: tuple[Colour, ...] = ("sync", "async")


def with_option(url: str, name: str, value: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{name}={value}"


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
    server: str = request.getfixturevalue(f"{store}_url")
    return with_option(server, {"redis": "prefix"}.get(store, "table"), unique())


class PostgresTables:
    """The one set of tables a worker process uses, and the stores open on it."""

    def __init__(self, url: str) -> None:
        self.prefix = unique("contract_")
        self.url = with_option(url, "table", self.prefix)
        self._admin = psycopg.connect(url, autocommit=True)
        self._open: dict[str, Do] = {}

    def empty(self, colour: str) -> Do:
        """The store, without a record in it. Closing what is returned keeps it open for the next test."""
        if colour not in self._open:
            self._open[colour] = open_migrated(self.url, colour)
        for table in self._tables():
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
        self.url = with_option(url, "table", self.prefix)
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
