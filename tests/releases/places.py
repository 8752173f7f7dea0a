"""Where releases meet: an empty place in a store, the application's own database beside it, and its ledger."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pymysql
import pytest

from retrysafe.stores.mysql.dialect import parse_url
from tests.opening import store_url, unique
from tests.releases.processes import At, Release

STORES = ("sqlite", "redis", "postgres", "mysql", "mariadb", "mongodb", "dynamodb", "duckdb")
MAIN = ("sqlite", "redis", "postgres")
"""On which every story is told."""
SHARED = (*MAIN, "mysql", "mongodb", "dynamodb")
"""On which the ones that see most are told too. MariaDB speaks as MySQL does; DuckDB is one process."""

OUTBOX = ("sqlite", "postgres", "mysql", "mariadb", "mongodb", "duckdb")
SAME_DATABASE = ("sqlite", "postgres", "mysql")
"""Where the application's rows and our recovery points share a commit; elsewhere its steps leave receipts in a file."""


@dataclass
class Place:
    store: str
    url: str
    server: str
    """The address without our options."""
    folder: Path

    @property
    def name(self) -> str:
        """The table, collection or prefix."""
        given = parse_qs(urlsplit(self.url).query)
        return next((given[each][0] for each in ("prefix", "collection", "table") if each in given), "retrysafe")

    def at(self, release: Release, **more: Any) -> At:
        return release.at(self.url, **more)


def place_for(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> Place:
    embedded = store in ("sqlite", "duckdb")
    server = "" if embedded else request.getfixturevalue(f"{store}_url")
    return Place(store, store_url(request, tmp_path, store), server, tmp_path)


class World:
    """A place, both releases at it, and what happened."""

    def __init__(self, place: Place, old: Release, new: Release) -> None:
        self.place = place
        self.ledger = place.folder / f"{unique('ledger')}.txt"
        self.ledger.touch()
        self.table = unique("orders")
        self.tx = self._tx()
        more = {"ledger": str(self.ledger), "tx": self.tx}
        self.old = place.at(old, **more)
        self.new = place.at(new, **more)
        self.old("migrate")
        self.new("migrate")  # as in a deployment: the schema first, then processes, one after the other
        self._make_orders(old)

    def sides(self, first: str) -> tuple[At, At]:
        """Who begins, and who goes on."""
        return (self.old, self.new) if first == "old" else (self.new, self.old)

    # The application's own database ---------------------------------------------------------

    def _tx(self) -> dict[str, Any]:
        store, mark = self.place.store, "?"
        if store in ("postgres", "mysql"):
            kind, at, mark = store, self.place.server, "%s"
        elif store == "sqlite":
            kind, at = "sqlite", self.place.url.removeprefix("sqlite:///")
        else:
            kind, at = "sqlite", str(self.place.folder / f"{unique('shop')}.db")
        insert = f"INSERT INTO {self.table} (item, cents) VALUES ({mark}, {mark})"
        return {"kind": kind, "at": at, "insert": insert, "stages": store in SAME_DATABASE}

    def _make_orders(self, old: Release) -> None:
        if self.place.store not in SAME_DATABASE:
            old.at(f"sqlite:///{self.tx['at']}")("migrate")  # the receipts of its steps
            old.at(f"sqlite:///{self.tx['at']}").close()
        self._sql(f"CREATE TABLE {self.table} (item varchar(50), cents integer)")

    def _sql(self, text: str) -> list[Any]:
        kind, at = self.tx["kind"], self.tx["at"]
        if kind == "postgres":
            with psycopg.connect(at, autocommit=True) as db:
                cursor = db.execute(text)  # type: ignore[arg-type]  # our own text
                return cursor.fetchall() if cursor.description else []
        own: Any = sqlite3.connect(at, timeout=30) if kind == "sqlite" else pymysql.connect(**parse_url(at).connect)
        try:
            cursor = own.cursor()
            cursor.execute(text)
            own.commit()
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            own.close()

    def orders(self) -> list[str]:
        return [item for (item,) in self._sql(f"SELECT item FROM {self.table}")]

    # What happened --------------------------------------------------------------------------

    @staticmethod
    def lines(ledger: Path) -> list[list[str]]:
        return [line.split() for line in ledger.read_text().splitlines()]

    def effects(self) -> list[list[str]]:
        return self.lines(self.ledger)

    def counted(self, what: str) -> Counter[str]:
        """How often each thing of that kind was done."""
        return Counter(line[1] for line in self.effects() if line[0] == what)

    def keys(self, what: str) -> set[str]:
        """The keys under which another system was asked for it."""
        return {line[2] for line in self.effects() if line[0] == what}

    def record(self) -> dict[str, Any]:
        (record,) = self.old.all()
        return record

    def lapse(self) -> None:
        """Time passes: whoever holds a lease has been silent for too long. Said by the old release, to any record."""
        for record in self.old.all():
            if record["state"] == "claimed":
                fence = [record["attempt"], record["token"]]
                assert self.old.op("Renew", id=record["id"], fence=fence, lease=0, now=1) is True

    def close(self) -> None:
        self.old.close()
        self.new.close()
