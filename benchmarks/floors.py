"""The raw drivers, one by one: claim and complete with the least that could be called that (one table, two statements,
a commit each). It knows no leases, no fingerprints and no replays; it is what any correct answer costs at least.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from retrysafe.stores.dynamodb.urls import parse_url

BODY = b'{"order":4127,"status":"accepted","items":[1,2,3],"note":"' + b"x" * 140 + b'"}'

CREATE = "CREATE TABLE IF NOT EXISTS {} (key {} PRIMARY KEY, token {} NOT NULL, state text NOT NULL, body {})"
SETTLE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'completed', 'body', ARGV[2])
return 1
"""
POOL = 32

Work = Callable[[], Awaitable[Any]]


def name_and_token() -> tuple[bytes, bytes]:
    drawn = os.urandom(48)
    return drawn[:32], drawn[32:]


@asynccontextmanager
async def asyncpg_pairs(url: str) -> AsyncIterator[Work]:
    import asyncpg  # type: ignore[import-untyped]  # ships no types

    async with asyncpg.create_pool(url, min_size=1, max_size=POOL) as pool:
        await pool.execute(CREATE.format("floor", "bytea", "bytea", "bytea"))
        insert = "INSERT INTO floor VALUES ($1, $2, 'claimed', NULL) ON CONFLICT DO NOTHING RETURNING key"
        update = "UPDATE floor SET state = 'completed', body = $3 WHERE key = $1 AND token = $2 RETURNING 1"

        async def pair() -> None:
            key, token = name_and_token()
            assert await pool.fetchrow(insert, key, token)
            assert await pool.fetchrow(update, key, token, BODY)

        yield pair


@asynccontextmanager
async def psycopg_pairs(url: str) -> AsyncIterator[Work]:
    import psycopg_pool

    async with psycopg_pool.AsyncConnectionPool(
        url, min_size=1, max_size=POOL, kwargs={"autocommit": True}, open=False
    ) as pool:
        async with pool.connection() as connection:
            await connection.execute(CREATE.format("floor", "bytea", "bytea", "bytea"))
        insert = "INSERT INTO floor VALUES (%s, %s, 'claimed', NULL) ON CONFLICT DO NOTHING RETURNING key"
        update = "UPDATE floor SET state = 'completed', body = %s WHERE key = %s AND token = %s RETURNING 1"

        async def pair() -> None:
            key, token = name_and_token()
            async with pool.connection() as connection:
                assert await (await connection.execute(insert, (key, token))).fetchone()
            async with pool.connection() as connection:
                assert await (await connection.execute(update, (BODY, key, token))).fetchone()

        yield pair


@contextmanager
def psycopg_threads(url: str) -> Iterator[Callable[[], Any]]:
    import psycopg_pool

    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=POOL, kwargs={"autocommit": True}, open=True) as pool:
        with pool.connection() as connection:
            connection.execute(CREATE.format("floor", "bytea", "bytea", "bytea"))
        insert = "INSERT INTO floor VALUES (%s, %s, 'claimed', NULL) ON CONFLICT DO NOTHING RETURNING key"
        update = "UPDATE floor SET state = 'completed', body = %s WHERE key = %s AND token = %s RETURNING 1"

        def pair() -> None:
            key, token = name_and_token()
            with pool.connection() as connection:
                assert connection.execute(insert, (key, token)).fetchone()
            with pool.connection() as connection:
                assert connection.execute(update, (BODY, key, token)).fetchone()

        yield pair


_PUT = "INSERT INTO floor VALUES (?, ?, 'claimed', NULL) ON CONFLICT DO NOTHING"
_SET = "UPDATE floor SET state = 'completed', body = ? WHERE key = ? AND token = ?"
_INSERT = f"{_PUT} RETURNING key"
_UPDATE = f"{_SET} RETURNING 1"


@asynccontextmanager
async def aiosqlite_pairs(path: str) -> AsyncIterator[Work]:
    """A commit per write, on the one connection a file can have as its writer."""
    import aiosqlite

    async with aiosqlite.connect(path, isolation_level=None) as db:
        await db.execute("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = FULL")
        await db.execute(CREATE.format("floor", "blob", "blob", "blob"))

        async def pair() -> None:
            key, token = name_and_token()
            assert await db.execute_fetchall(_INSERT, (key, token))
            assert await db.execute_fetchall(_UPDATE, (BODY, key, token))

        yield pair


@asynccontextmanager
async def aiosqlite_documented(path: str) -> AsyncIterator[Work]:
    """The same as its documentation writes it: execute, then commit. Two trips to its thread instead of one; and nobody
    else's write in between, or one commit would be for many."""
    import asyncio

    import aiosqlite

    async with aiosqlite.connect(path) as db:
        await db.execute("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = FULL")
        await db.execute(CREATE.format("floor", "blob", "blob", "blob"))
        alone = asyncio.Lock()

        async def write(text: str, *values: bytes) -> None:
            async with alone:
                done = await db.execute(text, values)
                await db.commit()
            assert done.rowcount == 1

        async def pair() -> None:
            key, token = name_and_token()
            await write(_PUT, key, token)
            await write(_SET, BODY, key, token)

        yield pair


@contextmanager
def sqlite_threads(path: str) -> Iterator[Callable[[], Any]]:
    """One connection behind a lock: the fastest simple way among threads."""
    import threading

    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    lock = threading.Lock()
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(CREATE.format("floor", "blob", "blob", "blob"))

    def pair() -> None:
        key, token = name_and_token()
        with lock:
            assert db.execute(_INSERT, (key, token)).fetchall()
        with lock:
            assert db.execute(_UPDATE, (BODY, key, token)).fetchall()

    yield pair
    db.close()


@asynccontextmanager
async def redis_pairs(url: str) -> AsyncIterator[Work]:
    from redis.asyncio import BlockingConnectionPool, Redis

    client = Redis(connection_pool=BlockingConnectionPool.from_url(url, max_connections=POOL))
    settle = client.register_script(SETTLE)

    async def pair() -> None:
        key, token = name_and_token()
        assert await client.hsetnx(key, "token", token)
        assert await settle(keys=[key], args=[token, BODY])

    yield pair
    await client.aclose()


@contextmanager
def redis_threads(url: str) -> Iterator[Callable[[], Any]]:
    from redis import BlockingConnectionPool, Redis

    client = Redis(connection_pool=BlockingConnectionPool.from_url(url, max_connections=POOL))
    settle = client.register_script(SETTLE)

    def pair() -> None:
        key, token = name_and_token()
        assert client.hsetnx(key, "token", token)
        assert settle(keys=[key], args=[token, BODY])

    yield pair
    client.close()


_MYSQL_CREATE = (
    "CREATE TABLE IF NOT EXISTS floor (`key` varbinary(32) PRIMARY KEY, token varbinary(16) NOT NULL, "
    "state varchar(16) NOT NULL, body longblob) ENGINE = InnoDB"
)
_MYSQL_INSERT = "INSERT INTO floor VALUES (%s, %s, 'claimed', NULL)"
_MYSQL_UPDATE = "UPDATE floor SET state = 'completed', body = %s WHERE `key` = %s AND token = %s"


@asynccontextmanager
async def asyncmy_pairs(url: str) -> AsyncIterator[Work]:
    """A key that exists fails the insert, with the error 1062."""
    import asyncmy

    at = mysql_address(url)
    async with asyncmy.create_pool(minsize=1, maxsize=POOL, autocommit=True, **at) as pool:

        async def write(text: str, *values: bytes) -> int:
            async with pool.acquire() as connection, connection.cursor() as cursor:
                return int(await cursor.execute(text, values or None))

        await write(_MYSQL_CREATE)

        async def pair() -> None:
            key, token = name_and_token()
            assert await write(_MYSQL_INSERT, key, token) == 1
            assert await write(_MYSQL_UPDATE, BODY, key, token) == 1

        yield pair


@contextmanager
def pymysql_threads(url: str) -> Iterator[Callable[[], Any]]:
    """A connection for each caller. Each slice has new threads, which take over the connections of the last."""
    import pymysql

    at = mysql_address(url)
    free: list[Any] = []
    opened: list[Any] = []

    def connect() -> Any:
        opened.append(pymysql.connect(autocommit=True, binary_prefix=True, **at))
        return opened[-1]

    def write(connection: Any, text: str, *values: bytes) -> int:
        with connection.cursor() as cursor:
            return int(cursor.execute(text, values or None))

    free.append(connect())
    write(free[0], _MYSQL_CREATE)

    def pair() -> None:
        key, token = name_and_token()
        try:
            connection = free.pop()
        except IndexError:
            connection = connect()
        assert write(connection, _MYSQL_INSERT, key, token) == 1
        assert write(connection, _MYSQL_UPDATE, BODY, key, token) == 1
        free.append(connection)

    yield pair
    for connection in opened:
        connection.close()


def mysql_address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username or "root",
        "password": parts.password or "",
        "database": parts.path.strip("/"),
    }


_MONGO_DURABLE: dict[str, Any] = {"w": "majority", "journal": True, "maxPoolSize": POOL}
_MONGO_DONE = {"$set": {"state": "completed", "body": BODY}}


@asynccontextmanager
async def pymongo_pairs(url: str) -> AsyncIterator[Work]:
    """A key that exists fails the insert. Every write waits for the majority and its journal."""
    from pymongo import AsyncMongoClient

    async with AsyncMongoClient[Any](url, **_MONGO_DURABLE) as client:
        keys = client.get_default_database()["floor"]

        async def pair() -> None:
            key, token = name_and_token()
            await keys.insert_one({"_id": key, "token": token, "state": "claimed"})
            assert (await keys.update_one({"_id": key, "token": token}, _MONGO_DONE)).matched_count == 1

        yield pair


@contextmanager
def pymongo_threads(url: str) -> Iterator[Callable[[], Any]]:
    from pymongo import MongoClient

    with MongoClient[Any](url, **_MONGO_DURABLE) as client:
        keys = client.get_default_database()["floor"]

        def pair() -> None:
            key, token = name_and_token()
            keys.insert_one({"_id": key, "token": token, "state": "claimed"})
            assert keys.update_one({"_id": key, "token": token}, _MONGO_DONE).matched_count == 1

        yield pair


@asynccontextmanager
async def aiobotocore_pairs(url: str) -> AsyncIterator[Work]:
    """A conditional put and a conditional update, with the SDK's own settings."""
    from aiobotocore.config import AioConfig  # type: ignore[import-untyped]  # it ships no types
    from aiobotocore.session import get_session  # type: ignore[import-untyped]

    at = parse_url(url)
    config = AioConfig(max_pool_connections=POOL)
    async with get_session().create_client("dynamodb", config=config, **at.client_options()) as client:
        await create_floor_table(client)

        async def pair() -> None:
            key, token = name_and_token()
            await client.put_item(
                TableName="floor",
                Item={"id": {"B": key}, "token": {"B": token}, "state": {"S": "claimed"}},
                ConditionExpression="attribute_not_exists(id)",
            )
            await client.update_item(
                TableName="floor",
                Key={"id": {"B": key}},
                UpdateExpression="SET #state = :state, body = :body",
                ConditionExpression="#token = :token",
                ExpressionAttributeNames={"#state": "state", "#token": "token"},
                ExpressionAttributeValues={":state": {"S": "completed"}, ":body": {"B": BODY}, ":token": {"B": token}},
            )

        yield pair


async def create_floor_table(client: Any) -> None:
    with suppress(client.exceptions.ResourceInUseException):
        await client.create_table(
            TableName="floor",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "B"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
