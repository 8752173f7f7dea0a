"""Stores that have been in use for long: many settled records, one in ten a released guard that needs nobody. Each is
loaded the quickest way it has, and gives the URL to open it with."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from typing import Any

from benchmarks.filling import NEVER, filled
from benchmarks.machines import Machines
from retrysafe.core.ops import Complete, Release
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.states import State
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql import rows
from retrysafe.testing.builders import claim

RELEASED = 10
"""Of so many one is a released guard."""

BODY = b"x" * 200
BATCH = 2000
FINGERPRINT = f"json1:33:{'ab' * 32}"


def crowded_postgres(machines: Machines, size: int) -> str:
    import psycopg

    table = f"idle_{size}"
    filled(machines.postgres, table, size, NEVER)
    with psycopg.connect(machines.postgres, autocommit=True) as db:
        db.execute(
            f"UPDATE {table}_keys SET state = 'released', status = NULL WHERE get_byte(id, 0) % {RELEASED} = 0".encode()
        )
        db.execute(f"VACUUM (ANALYZE) {table}_keys".encode())
    return f"{machines.postgres}?table={table}"


def crowded_sqlite(machines: Machines, size: int) -> str:
    path = machines.sqlite(f"idle_{size}")
    url = _migrated(f"sqlite:///{path}")
    marks = ", ".join("?" * len(rows.COLUMNS))
    with sqlite3.connect(path) as db:
        text = f"INSERT INTO retrysafe_keys ({', '.join(rows.COLUMNS)}) VALUES ({marks})"
        db.executemany(text, (row(number) for number in range(size)))
    db.close()
    return url


# The key comes out of a digest of the number, in its own order: a million rows in random order would each be another
# page of the clustered index.
MYSQL_FILL = """
INSERT INTO {keys} ({columns})
SELECT id, 'default', 'http', 'account-7', CONCAT('key-', n), 'POST /payments', '{fingerprint}',
    IF(n % {released} = 0, 'released', 'completed'), 1, X'00', X'00', 0, 'uncertain', '', '', '',
    IF(n % {released} = 0, NULL, 201), '', REPEAT('x', 200), '', '', 0, 0, 0, {never}, 86400000000, 0, ''
FROM (
    SELECT UNHEX(SHA2(CONCAT('{keys}', n), 256)) AS id, n
    FROM (SELECT {digits} AS n FROM {tables}) AS numbers
    WHERE n < {size}
) AS made
ORDER BY id
"""
TEN = "(SELECT 0 AS d UNION ALL " + " UNION ALL ".join(f"SELECT {digit}" for digit in range(1, 10)) + ")"


def crowded_mysql(machines: Machines, size: int) -> str:
    return _mysql(machines.mysql, size)


def crowded_mariadb(machines: Machines, size: int) -> str:
    return _mysql(machines.mariadb, size)


def _mysql(server: str, size: int) -> str:
    from urllib.parse import urlsplit

    import pymysql

    url = _migrated(f"{server}?table=idle_{size}")
    at, places = urlsplit(server), range(len(str(size - 1)))
    columns = ", ".join("`key`" if name == "key" else name for name in rows.COLUMNS)
    text = MYSQL_FILL.format(
        keys=f"idle_{size}_keys",
        columns=columns,
        fingerprint=FINGERPRINT,
        released=RELEASED,
        never=NEVER,
        size=size,
        digits=" + ".join(f"t{place}.d * {10**place}" for place in places),
        tables=" CROSS JOIN ".join(f"{TEN} AS t{place}" for place in places),
    )
    user, password = at.username or "root", at.password or ""
    with pymysql.connect(
        host=at.hostname, port=at.port or 3306, user=user, password=password, database=at.path[1:], autocommit=True
    ) as db:
        cursor = db.cursor()
        cursor.execute(text)
        cursor.execute(f"ANALYZE TABLE idle_{size}_keys")
    return url


def crowded_mongo(machines: Machines, size: int) -> str:
    from pymongo import MongoClient

    from retrysafe.stores.mongo.documents import write_record

    joint = "&" if "?" in machines.mongo else "?"
    url = _migrated(f"{machines.mongo}{joint}collection=idle_{size}")
    with MongoClient[dict[str, Any]](machines.mongo) as client:
        keys = client.get_default_database()[f"idle_{size}_keys"]
        for start in range(0, size, BATCH):
            keys.insert_many([write_record(record(n)) for n in range(start, min(start + BATCH, size))], ordered=False)
    return url


REDIS_COPIES = """
local fields, birth, score = redis.call('HGETALL', KEYS[3] .. ARGV[1]), redis.call('ZSCORE', KEYS[1], ARGV[1]), nil
score = redis.call('ZSCORE', KEYS[2], ARGV[1])
local left = redis.call('PTTL', KEYS[3] .. ARGV[1])
for n = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local name = redis.sha1hex(ARGV[1] .. n) .. string.sub(redis.sha1hex(n .. ARGV[1]), 1, 24)
  redis.call('HSET', KEYS[3] .. name, unpack(fields))
  if left > 0 then redis.call('PEXPIRE', KEYS[3] .. name, left) end
  redis.call('ZADD', KEYS[1], birth + n, name)
  redis.call('ZADD', KEYS[2], score, name)
end
"""
"""Copies of one record under other ids, made by the server: a million in a minute."""


def crowded_redis(machines: Machines, size: int) -> str:
    import redis

    from retrysafe.stores.redis.layout import Layout

    url = _migrated(f"{machines.redis_memory}?prefix=idle{size}:")
    store = open_store(url)
    released = size // RELEASED
    with redis.Redis.from_url(machines.redis_memory) as client:
        copy = client.register_script(REDIS_COPIES)
        for number, copies in enumerate((released, size - released)):
            made = store.execute(claim(f"key-{number}", namespace="default", scope="account-7", now=None)).record
            assert made is not None
            assert store.execute(settled(made, number))
            for start in range(1, copies, BATCH):
                last = min(start + BATCH, copies) - 1
                copy(keys=Layout(f"idle{size}:").bucket_keys(0), args=[made.id.hex(), start, last])
    store.close()
    return url


DUCKDB_FILL = """
INSERT INTO retrysafe_keys ({columns})
SELECT unhex(sha256('duck' || n)), 'default', 'http', 'account-7', 'key-' || n, 'POST /payments', '{fingerprint}',
    CASE WHEN n % {released} = 0 THEN 'released' ELSE 'completed' END, 1, '\\x00'::BLOB, '\\x00'::BLOB, 0, 'uncertain',
    '', ''::BLOB, ''::BLOB, CASE WHEN n % {released} = 0 THEN NULL ELSE 201 END, '', repeat('x', 200)::BLOB, '', '', 0,
    0, 0, {never}, 86400000000, 0, ''::BLOB
FROM range({size}) AS numbers(n)
"""


def crowded_duckdb(machines: Machines, size: int) -> str:
    import duckdb

    path = machines.sqlite(f"duck_{size}")
    url = _migrated(f"duckdb:///{path}")
    columns = ", ".join(f'"{name}"' for name in rows.COLUMNS)
    with duckdb.connect(path) as db:
        db.execute(
            DUCKDB_FILL.format(columns=columns, fingerprint=FINGERPRINT, released=RELEASED, never=NEVER, size=size)
        )
        db.execute("CHECKPOINT")
    return url


def crowded_dynamodb(machines: Machines, size: int) -> str:
    from benchmarks.dynoxide import fill

    table = f"idle_{size}"
    url = _migrated(machines.dynamodb.replace("/retrysafe?", f"/{table}?"))
    fill(machines.servers["dynamodb"], table, (record(number) for number in range(size)))
    return url


CROWDED: dict[str, Callable[[Machines, int], str]] = {
    "PostgreSQL": crowded_postgres,
    "SQLite": crowded_sqlite,
    "MySQL": crowded_mysql,
    "MariaDB": crowded_mariadb,
    "MongoDB": crowded_mongo,
    "Redis": crowded_redis,
    "DynamoDB": crowded_dynamodb,
    "DuckDB": crowded_duckdb,
}


def _migrated(url: str) -> str:
    store = open_store(url)
    store.migrate()
    store.close()
    return url


def row(number: int) -> tuple[Any, ...]:
    """As FILL makes it."""
    released = number % RELEASED == 0
    return (
        secrets.token_bytes(32), "default", "http", "account-7", f"key-{number}", "POST /payments", FINGERPRINT,
        "released" if released else "completed", 1, b"\0", b"\0", 0, "uncertain", "", b"", b"",
        None if released else 201, "", BODY, "", "", 0, 0, 0, int(NEVER), 86_400_000_000, 0, b"",
    )  # fmt: skip


def record(number: int) -> Record:
    released = number % RELEASED == 0
    return Record(
        secrets.token_bytes(32), "default", "http", "account-7", f"key-{number}", "POST /payments",
        Fingerprint.parse(FINGERPRINT), State.RELEASED if released else State.COMPLETED, 1, b"\0", b"\0", 0,
        "uncertain", "", b"", b"", None if released else Answer(201, BODY), "", 0, 0, 0, int(NEVER),
        86_400_000_000, 0, (),
    )  # fmt: skip


def settled(found: Record, number: int) -> Any:
    if number % RELEASED == 0:
        return Release(found.id, found.fence)
    return Complete(found.id, found.fence, Answer(201, BODY))
