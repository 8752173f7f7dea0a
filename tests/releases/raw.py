"""What lies in a store, beside every release: read it, put it back, and add to it what a later release might.

An entry is where it lies (a table, a collection, a key) and what lies there, in words of JSON (wire.py). Names of
tables and prefixes are left out, so what was read in one place can be put into another. The name of an installation
is left out as well: it is drawn.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import duckdb
import psycopg
import pymysql
from bson import json_util
from pymongo import MongoClient
from redis import Redis

from retrysafe.stores.mongo import settings as mongo
from retrysafe.stores.mysql.dialect import parse_url
from tests.releases.places import Place
from tests.servers.dynamodb import client_of

Entry = tuple[str, Any]

TABLES = ("keys", "outbox", "receipts")
LATER = "a_later_number"
"""A field that no release has."""


class Raw:
    """One store's contents."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def read(self) -> list[Entry]:
        raise NotImplementedError

    def write(self, entries: list[Entry]) -> None:
        """Into a place that a release has made, and where nothing is yet."""
        raise NotImplementedError

    def expand(self) -> None:
        """What a later release's migration may do while this one is running: more columns or fields, with values of
        their own in every record there is, and a later version written down."""
        raise NotImplementedError

    def fields(self, record_id: bytes) -> set[str]:
        """Which fields a record has."""
        raise NotImplementedError


# SQL ------------------------------------------------------------------------------------------------------------------


class SqlRaw(Raw):
    mark = "?"
    quote = '"'
    blob = "blob NOT NULL DEFAULT x'00'"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        raise NotImplementedError

    def table(self, name: str) -> str:
        return f"{self.quote}{self.place.name}_{name}{self.quote}"

    def read(self) -> list[Entry]:
        found: list[Entry] = []
        with self.connected() as db:
            for table in TABLES:
                cursor = self.run(db, f"SELECT * FROM {self.table(table)} ORDER BY 1")
                names = [column[0] for column in cursor.description]
                found += [(table, dict(zip(names, map(_plain, row), strict=True))) for row in cursor.fetchall()]
        return found

    def write(self, entries: list[Entry]) -> None:
        with self.connected() as db:
            for table, row in entries:
                names = ", ".join(f"{self.quote}{name}{self.quote}" for name in row)
                marks = ", ".join(self.mark for _ in row)
                self.run(db, f"INSERT INTO {self.table(table)} ({names}) VALUES ({marks})", list(row.values()))

    def expand(self) -> None:
        keys = self.table("keys")
        with self.connected() as db:
            self.run(db, f"ALTER TABLE {keys} ADD COLUMN {LATER} integer NOT NULL DEFAULT 7")
            self.run(db, f"ALTER TABLE {keys} ADD COLUMN a_later_list {self.blob}")
        self.write_down(99)

    def version(self) -> int:
        """Which migration is written down as the last one."""
        with self.connected() as db:
            cursor = self.run(db, f"SELECT value FROM {self.table('meta')} WHERE name = 'version'")
            return int(cursor.fetchone()[0])

    def write_down(self, version: int) -> None:
        with self.connected() as db:
            self.run(db, f"UPDATE {self.table('meta')} SET value = '{version}' WHERE name = 'version'")

    def fields(self, record_id: bytes) -> set[str]:
        (held,) = (row for table, row in self.read() if table == "keys" and row["id"] == record_id)
        return set(held)

    def run(self, db: Any, text: str, values: Any = ()) -> Any:
        cursor = db.cursor()
        cursor.execute(text, values)
        return cursor


class SqliteRaw(SqlRaw):
    @contextmanager
    def connected(self) -> Iterator[Any]:
        path = self.place.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
            yield db


class PostgresRaw(SqlRaw):
    mark = "%s"
    blob = "bytea NOT NULL DEFAULT '\\x00'"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with psycopg.connect(self.place.server, autocommit=True) as db:
            yield db


class MysqlRaw(SqlRaw):
    mark = "%s"
    quote = "`"
    blob = "varbinary(255) NOT NULL DEFAULT '0'"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with pymysql.connect(**parse_url(self.place.server).connect, autocommit=True) as db:
            yield db


class DuckdbRaw(SqlRaw):
    blob = "blob NOT NULL DEFAULT '\\x00'::blob"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with closing(duckdb.connect(self.place.url.removeprefix("duckdb:///"))) as db:
            yield db


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


# Others ---------------------------------------------------------------------------------------------------------------


class RedisRaw(Raw):
    """Hashes and sorted sets; scores as text, for they are doubles."""

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with closing(Redis.from_url(self.place.server)) as db:
            yield db

    def read(self) -> list[Entry]:
        found: list[Entry] = []
        start = self.place.name.encode()
        with self.connected() as db:
            for key in sorted(db.scan_iter(match=start + b"*", count=10_000)):
                name = key.removeprefix(start).decode()
                if name == "meta":
                    continue
                if db.type(key) == b"hash":
                    found.append((name, {field.decode(): value for field, value in sorted(db.hgetall(key).items())}))
                else:
                    members = db.zrange(key, 0, -1, withscores=True)
                    found.append((name, [[member.decode(), f"{score:.0f}"] for member, score in members]))
        return found

    def write(self, entries: list[Entry]) -> None:
        with self.connected() as db:
            for name, held in entries:
                if isinstance(held, dict):
                    db.hset(self.place.name + name, mapping=held)
                else:
                    db.zadd(self.place.name + name, {member: float(score) for member, score in held})

    def expand(self) -> None:
        with self.connected() as db:
            for name, held in self.read():
                if isinstance(held, dict):
                    db.hset(self.place.name + name, mapping={LATER: b"\x00more"})

    def fields(self, record_id: bytes) -> set[str]:
        (held,) = (held for name, held in self.read() if name.endswith(record_id.hex()))
        return set(held)


class MongoRaw(Raw):
    """Documents as MongoDB's own JSON says them."""

    COLLECTIONS = ("keys", "outbox", "meta")

    @contextmanager
    def connected(self) -> Iterator[dict[str, Any]]:
        at = mongo.parse_url(self.place.url)
        with closing(MongoClient(at.url, tz_aware=True)) as client:
            database = client[at.database]
            yield {name: database[getattr(at.names, name)] for name in self.COLLECTIONS}

    def read(self) -> list[Entry]:
        found: list[Entry] = []
        with self.connected() as db:
            for name, collection in db.items():
                for document in collection.find({"_id": {"$ne": "install"}}).sort("_id", 1):
                    text = json_util.dumps(document, json_options=json_util.CANONICAL_JSON_OPTIONS)
                    found.append((name, json.loads(text)))
        return found

    def write(self, entries: list[Entry]) -> None:
        with self.connected() as db:
            for name, document in entries:
                held = json_util.loads(json.dumps(document), json_options=json_util.CANONICAL_JSON_OPTIONS)
                db[name].replace_one({"_id": held["_id"]}, held, upsert=True)

    def expand(self) -> None:
        with self.connected() as db:
            db["keys"].update_many({}, {"$set": {LATER: 7, "a_later_list": [b"\x00"]}})

    def fields(self, record_id: bytes) -> set[str]:
        with self.connected() as db:
            return set(db["keys"].find_one({"_id": record_id}))


class DynamoRaw(Raw):
    """Items as they travel."""

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with closing(client_of(self.place.server)) as client:
            yield client

    def read(self) -> list[Entry]:
        with self.connected() as client:
            pages = client.get_paginator("scan").paginate(TableName=self.place.name)
            items = [item for page in pages for item in page["Items"]]
        return [("keys", item) for item in sorted(items, key=lambda item: item["id"]["B"])]

    def write(self, entries: list[Entry]) -> None:
        with self.connected() as client:
            for _, item in entries:
                client.put_item(TableName=self.place.name, Item=item)

    def expand(self) -> None:
        self.write([("keys", {**item, LATER: {"N": "7"}}) for _, item in self.read()])

    def fields(self, record_id: bytes) -> set[str]:
        (held,) = (item for _, item in self.read() if item["id"]["B"] == record_id)
        return set(held)


RAW: dict[str, type[Raw]] = {
    "sqlite": SqliteRaw,
    "postgres": PostgresRaw,
    "mysql": MysqlRaw,
    "mariadb": MysqlRaw,
    "duckdb": DuckdbRaw,
    "redis": RedisRaw,
    "mongodb": MongoRaw,
    "dynamodb": DynamoRaw,
}


def raw(place: Place) -> Raw:
    return RAW[place.store](place)
