"""One small interface to every way of holding a transaction, so that each behaviour is tested by one function.

A body is a list of steps: text is written to the table `effects` through the user's own handle, COMMIT and its like are
sent as they are, anything callable is called. A caller is one user with a connection of its own; it works from any one
thread.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiosqlite
import asyncmy
import asyncpg
import duckdb
import psycopg
import psycopg_pool
import pymysql
from pymongo import AsyncMongoClient, MongoClient
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.engine.arguments import fingerprint_call
from retrysafe.engine.guard import Ended, Task
from retrysafe.stores.mongo import settings as mongo
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.transactions import arun, run
from tests.transactions.django_databases import close_alias, django_alias

COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
DEADLOCK = "DO $$ BEGIN RAISE deadlock_detected; END $$"
MYSQL_DEADLOCK = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'"
MYSQL_LOCK_TIMEOUT = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'Lock wait timeout exceeded'"
RAW = (COMMIT, ROLLBACK, "DO ", "SIGNAL ")
SCOPE = "acct-1"
RELEASE = Policy(failures="release")
QUICK = 0.1
"""Seconds a caller on SQLite waits for the write lock here: in a test it is not released in the meantime."""

Step = str | Callable[[], object]


@dataclass
class World:
    """A database with the store's tables and the user's own."""

    url: str
    safe: RetrySafe

    @property
    def path(self) -> str:
        return self.url.partition("///")[2]

    @property
    def plain(self) -> str:
        return self.url.partition("?")[0]

    def effects(self) -> list[str]:
        if self.url.startswith("mongodb"):
            with mongo_client(self) as client:
                return sorted(each["_id"] for each in effects_of(client).find())
        return [value for (value,) in self.query("SELECT value FROM effects ORDER BY value")]

    def query(self, sql: str) -> list[Any]:
        if self.url.startswith("sqlite"):
            connection = sqlite3.connect(self.path)
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()
        if self.url.startswith("duckdb"):
            with duckdb.connect(self.path) as same:
                return same.execute(sql).fetchall()
        if self.url.startswith(("mysql", "mariadb")):
            with connect_pymysql(self, autocommit=True) as my, my.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        with psycopg.connect(self.plain, autocommit=True) as other:
            return other.execute(sql).fetchall()


class Caller:
    """`given` is what the user passes as tx; `write` and `raw` are how the user's own code uses the handle."""

    def __init__(
        self, world: World, given: Any, write: Callable[[Any, str], Any], raw: Callable[[Any, str], Any]
    ) -> None:
        self.world = world
        self.given = given
        self._write = write
        self._raw = raw

    def block(self, key: str, steps: Sequence[Step], *, request: Any = 1, policy: Policy = RELEASE) -> Ended:
        """`with safe.transaction(…)`."""
        with self.world.safe.transaction(self.given, key=key, scope=SCOPE, request=request, policy=policy) as tx:
            if not tx.replayed:
                self._do(tx.handle, steps)
                tx.answer = Answer(201, {"done": key})
        return Ended(tx.answer, tx.replayed, None, tx.record)

    def run(self, key: str, steps: Sequence[Step], *, request: Any = 1, policy: Policy = RELEASE) -> Ended:
        """What routes and decorators are made of."""

        def body(handle: Any) -> Answer:
            self._do(handle, steps)
            return Answer(201, {"done": key})

        return run(self.world.safe, task(self.world.safe, key, request, policy), self.given, body)

    def nested(self, key: str, value: str) -> object:
        """As a step: another transaction of the same user inside the one that is open."""
        return self.run(key, [value])

    def _do(self, handle: Any, steps: Sequence[Step]) -> None:
        for step in steps:
            if not isinstance(step, str):
                step()
            elif step.startswith(RAW):
                self._raw(handle, step)
            else:
                self._write(handle, step)


class AsyncCaller(Caller):
    """The same on an event loop of its own, so that it can be used like the other."""

    def __init__(self, world: World, make: Callable[[], Any], write: Any, raw: Any) -> None:
        self.runner = asyncio.Runner()
        given = make()
        super().__init__(world, self.runner.run(given) if asyncio.iscoroutine(given) else given, write, raw)

    def block(self, key: str, steps: Sequence[Step], *, request: Any = 1, policy: Policy = RELEASE) -> Ended:
        async def run_block() -> Ended:
            begin = self.world.safe.transaction(self.given, key=key, scope=SCOPE, request=request, policy=policy)
            async with begin as tx:
                if not tx.replayed:
                    await self._ado(tx.handle, steps)
                    tx.answer = Answer(201, {"done": key})
            return Ended(tx.answer, tx.replayed, None, tx.record)

        return self.runner.run(run_block())

    def run(self, key: str, steps: Sequence[Step], *, request: Any = 1, policy: Policy = RELEASE) -> Ended:
        return self.runner.run(self.arun(key, steps, request=request, policy=policy))

    async def arun(self, key: str, steps: Sequence[Step], *, request: Any = 1, policy: Policy = RELEASE) -> Ended:
        async def body(handle: Any) -> Answer:
            await self._ado(handle, steps)
            return Answer(201, {"done": key})

        return await arun(self.world.safe, task(self.world.safe, key, request, policy), self.given, body)

    def nested(self, key: str, value: str) -> object:
        return self.arun(key, [value])

    async def _ado(self, handle: Any, steps: Sequence[Step]) -> None:
        for step in steps:
            if not isinstance(step, str):
                done = step()
                if inspect.isawaitable(done):
                    await done
            elif step.startswith(RAW):
                await self._raw(handle, step)
            else:
                await self._write(handle, step)

    def close(self, closing: Callable[[Any], Awaitable[Any]]) -> None:
        async def finish() -> None:
            await closing(self.given)
            await self.world.safe.async_store.aclose()

        self.runner.run(finish())
        self.runner.close()


def task(safe: RetrySafe, key: str, request: Any, policy: Policy) -> Task:
    """As `safe.transaction` makes it, so that both forms meet in one record."""
    fingerprint = fingerprint_call("test", {"request": request, "target": ""}, frozenset())
    return Task(Key(key, SCOPE), safe.namespace, "", fingerprint, policy)


# Drivers ------------------------------------------------------------------------------------------


@contextmanager
def on_psycopg(world: World) -> Iterator[Caller]:
    with psycopg.connect(world.plain) as connection:
        yield Caller(world, connection, psycopg_write, lambda c, sql: c.execute(sql))


@contextmanager
def on_psycopg_autocommit(world: World) -> Iterator[Caller]:
    with psycopg.connect(world.plain, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        yield Caller(world, connection, psycopg_write, lambda c, sql: c.execute(sql))


@contextmanager
def on_psycopg_pool(world: World) -> Iterator[Caller]:
    with psycopg_pool.ConnectionPool(world.plain, min_size=1, max_size=2, open=True) as pool:
        yield Caller(world, pool, psycopg_write, lambda c, sql: c.execute(sql))


def psycopg_write(connection: Any, value: str) -> Any:
    return connection.execute("INSERT INTO effects (value) VALUES (%s)", [value])


@contextmanager
def on_async_psycopg(world: World) -> Iterator[Caller]:
    caller = AsyncCaller(
        world, lambda: psycopg.AsyncConnection.connect(world.plain), psycopg_write, lambda c, sql: c.execute(sql)
    )
    yield caller
    caller.close(lambda connection: connection.close())


@contextmanager
def on_async_psycopg_pool(world: World) -> Iterator[Caller]:
    async def opened() -> Any:
        pool = psycopg_pool.AsyncConnectionPool(world.plain, min_size=1, max_size=2, open=False)
        await pool.open()
        return pool

    caller = AsyncCaller(world, opened, psycopg_write, lambda c, sql: c.execute(sql))
    yield caller
    caller.close(lambda pool: pool.close())


def asyncpg_write(connection: Any, value: str) -> Any:
    return connection.execute("INSERT INTO effects (value) VALUES ($1)", value)


@contextmanager
def on_asyncpg(world: World) -> Iterator[Caller]:
    caller = AsyncCaller(world, lambda: _asyncpg_connect(world.plain), asyncpg_write, lambda c, sql: c.execute(sql))
    yield caller
    caller.close(lambda connection: connection.close())


async def _asyncpg_connect(url: str) -> Any:
    return await asyncpg.connect(url)


@contextmanager
def on_asyncpg_pool(world: World) -> Iterator[Caller]:
    async def opened() -> Any:
        return await asyncpg.create_pool(world.plain, min_size=1, max_size=2)

    caller = AsyncCaller(world, opened, asyncpg_write, lambda c, sql: c.execute(sql))
    yield caller
    caller.close(lambda pool: pool.close())


def sqlite_write(connection: Any, value: str) -> Any:
    return connection.execute("INSERT INTO effects (value) VALUES (?)", [value])


@contextmanager
def on_sqlite3(world: World) -> Iterator[Caller]:
    connection = sqlite3.connect(world.path, timeout=QUICK, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    yield Caller(world, connection, sqlite_write, lambda c, sql: c.execute(sql))
    connection.close()


@contextmanager
def on_sqlite3_factory(world: World) -> Iterator[Caller]:
    def make() -> sqlite3.Connection:
        return sqlite3.connect(world.path, timeout=QUICK, isolation_level=None)

    yield Caller(world, make, sqlite_write, lambda c, sql: c.execute(sql))


@contextmanager
def on_duckdb(world: World) -> Iterator[Caller]:
    with duckdb.connect(world.path) as connection:
        yield Caller(world, connection, sqlite_write, lambda c, sql: c.execute(sql))


@contextmanager
def on_duckdb_factory(world: World) -> Iterator[Caller]:
    with duckdb.connect(world.path) as connection:
        yield Caller(world, connection.cursor, sqlite_write, lambda c, sql: c.execute(sql))


@contextmanager
def on_aiosqlite(world: World) -> Iterator[Caller]:
    async def opened() -> Any:
        return await aiosqlite.connect(world.path, timeout=QUICK)

    caller = AsyncCaller(world, opened, sqlite_write, lambda c, sql: c.execute(sql))
    yield caller
    caller.close(lambda connection: connection.close())


@contextmanager
def on_aiosqlite_factory(world: World) -> Iterator[Caller]:
    def make() -> Any:
        return lambda: aiosqlite.connect(world.path, timeout=QUICK)

    caller = AsyncCaller(world, make, sqlite_write, lambda c, sql: c.execute(sql))
    yield caller
    caller.close(_nothing)


async def _nothing(given: Any) -> None:
    """Nothing of ours is left open."""


def connect_pymysql(world: World, **options: Any) -> Any:
    return pymysql.connect(**parse_url(world.plain).connect, **options)


def mysql_raw(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def mysql_write(connection: Any, value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (value) VALUES (%s)", [value])


@contextmanager
def on_pymysql(world: World) -> Iterator[Caller]:
    with connect_pymysql(world, cursorclass=pymysql.cursors.DictCursor) as connection:
        yield Caller(world, connection, mysql_write, mysql_raw)


@contextmanager
def on_pymysql_factory(world: World) -> Iterator[Caller]:
    yield Caller(world, lambda: connect_pymysql(world, autocommit=True), mysql_write, mysql_raw)


async def asyncmy_raw(connection: Any, sql: str) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute(sql)


async def asyncmy_write(connection: Any, value: str) -> None:
    async with connection.cursor() as cursor:
        await cursor.execute("INSERT INTO effects (value) VALUES (%s)", [value])


@contextmanager
def on_asyncmy(world: World) -> Iterator[Caller]:
    async def opened() -> Any:
        return await asyncmy.connect(**parse_url(world.plain).connect)

    caller = AsyncCaller(world, opened, asyncmy_write, asyncmy_raw)
    yield caller
    caller.close(lambda connection: connection.ensure_closed())


@contextmanager
def on_asyncmy_pool(world: World) -> Iterator[Caller]:
    async def opened() -> Any:
        return await asyncmy.create_pool(**parse_url(world.plain).connect, minsize=1, maxsize=2)

    async def closing(pool: Any) -> None:
        pool.close()
        await pool.wait_closed()

    caller = AsyncCaller(world, opened, asyncmy_write, asyncmy_raw)
    yield caller
    caller.close(closing)


def mongo_client(world: World) -> MongoClient[Any]:
    at = mongo.parse_url(world.url)
    return MongoClient(at.url)


def emptied_collections(world: World, *names: str) -> None:
    """There, and with nothing in them: a collection that a transaction would have to make first is another story."""
    with mongo_client(world) as client:
        database = client.get_default_database()
        there = set(database.list_collection_names())
        for name in names:
            if name in there:
                database[name].delete_many({})
            else:
                database.create_collection(name)


def effects_of(client: Any) -> Any:
    """The user's own collection, in the database the client's URL names."""
    return client.get_default_database()["effects"]


def mongo_write(session: Any, value: str) -> Any:
    return effects_of(session.client).insert_one({"_id": value}, session=session)


def mongo_commit(session: Any, sql: str) -> Any:
    return session.commit_transaction()


@contextmanager
def on_mongo_client(world: World) -> Iterator[Caller]:
    with mongo_client(world) as client:
        yield Caller(world, client, mongo_write, mongo_commit)


@contextmanager
def on_mongo_session(world: World) -> Iterator[Caller]:
    with mongo_client(world) as client, client.start_session() as session:
        yield Caller(world, session, mongo_write, mongo_commit)


@contextmanager
def on_async_mongo_client(world: World) -> Iterator[Caller]:
    def make() -> Any:
        return AsyncMongoClient(mongo.parse_url(world.url).url)

    caller = AsyncCaller(world, make, mongo_write, mongo_commit)
    yield caller
    caller.close(lambda client: client.close())


@contextmanager
def on_async_mongo_session(world: World) -> Iterator[Caller]:
    client: AsyncMongoClient[Any] = AsyncMongoClient(mongo.parse_url(world.url).url)
    caller = AsyncCaller(world, client.start_session, mongo_write, mongo_commit)
    yield caller

    async def closing(session: Any) -> None:
        await session.end_session()
        await client.close()

    caller.close(closing)


def sqlalchemy_write(handle: Any, value: str) -> Any:
    return handle.execute(text("INSERT INTO effects (value) VALUES (:value)"), {"value": value})


def sqlalchemy_raw(session: Any, sql: str) -> Any:
    """Its own way where it has one."""
    own = {COMMIT: session.commit, ROLLBACK: session.rollback}
    return own[sql]() if sql in own else session.execute(text(sql))


def sqlalchemy_url(world: World, driver: str) -> str:
    return f"{driver}:{world.plain.partition(':')[2]}"


def sqlalchemy_engine(world: World, driver: str) -> Any:
    quick = {"connect_args": {"timeout": QUICK}} if driver.startswith("sqlite") else {}
    make = (
        create_async_engine if driver.endswith(("asyncpg", "aiosqlite", "psycopg_async", "asyncmy")) else create_engine
    )
    return make(sqlalchemy_url(world, driver), poolclass=NullPool, **quick)


def on_session(driver: str) -> Callable[[World], Any]:
    @contextmanager
    def caller(world: World) -> Iterator[Caller]:
        engine = sqlalchemy_engine(world, driver)
        with sessionmaker(engine)() as session:
            yield Caller(world, session, sqlalchemy_write, sqlalchemy_raw)
        engine.dispose()

    return caller


def on_sessionmaker(driver: str) -> Callable[[World], Any]:
    @contextmanager
    def caller(world: World) -> Iterator[Caller]:
        engine = sqlalchemy_engine(world, driver)
        yield Caller(world, sessionmaker(engine), sqlalchemy_write, sqlalchemy_raw)
        engine.dispose()

    return caller


def on_engine(driver: str) -> Callable[[World], Any]:
    @contextmanager
    def caller(world: World) -> Iterator[Caller]:
        engine = sqlalchemy_engine(world, driver)
        yield Caller(world, engine, sqlalchemy_write, sqlalchemy_raw)
        engine.dispose()

    return caller


def on_async_sessionmaker(driver: str) -> Callable[[World], Any]:
    @contextmanager
    def caller(world: World) -> Iterator[Caller]:
        engine = sqlalchemy_engine(world, driver)
        made = AsyncCaller(world, lambda: async_sessionmaker(engine), sqlalchemy_write, sqlalchemy_raw)
        yield made
        made.close(lambda maker: engine.dispose())

    return caller


def on_async_session(driver: str) -> Callable[[World], Any]:
    @contextmanager
    def caller(world: World) -> Iterator[Caller]:
        engine = sqlalchemy_engine(world, driver)
        made = AsyncCaller(world, async_sessionmaker(engine), sqlalchemy_write, sqlalchemy_raw)
        yield made

        async def closing(session: Any) -> None:
            await session.close()
            await engine.dispose()

        made.close(closing)

    return caller


@contextmanager
def on_django(world: World) -> Iterator[Caller]:
    def raw(connection: Any, sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    def write(connection: Any, value: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO effects (value) VALUES (%s)", [value])

    with django_alias(world.plain, QUICK) as alias:
        yield DjangoCaller(world, f"django:{alias}", write, raw)


class DjangoCaller(Caller):
    """Django's connections belong to threads; one that ends closes its own."""

    def block(self, key: str, steps: Sequence[Step], **options: Any) -> Ended:
        try:
            return super().block(key, steps, **options)
        finally:
            self._leave()

    def run(self, key: str, steps: Sequence[Step], **options: Any) -> Ended:
        try:
            return super().run(key, steps, **options)
        finally:
            self._leave()

    def _leave(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            close_alias(self.given.removeprefix("django:"))


POSTGRES: dict[str, Callable[[World], Any]] = {
    "psycopg": on_psycopg,
    "psycopg-autocommit": on_psycopg_autocommit,
    "psycopg-pool": on_psycopg_pool,
    "psycopg-async": on_async_psycopg,
    "psycopg-async-pool": on_async_psycopg_pool,
    "asyncpg": on_asyncpg,
    "asyncpg-pool": on_asyncpg_pool,
    "session": on_session("postgresql+psycopg"),
    "sessionmaker": on_sessionmaker("postgresql+psycopg"),
    "engine": on_engine("postgresql+psycopg"),
    "async-session-asyncpg": on_async_session("postgresql+asyncpg"),
    "async-sessionmaker-asyncpg": on_async_sessionmaker("postgresql+asyncpg"),
    "async-sessionmaker-psycopg": on_async_sessionmaker("postgresql+psycopg_async"),
    "django": on_django,
}
SQLITE: dict[str, Callable[[World], Any]] = {
    "sqlite3": on_sqlite3,
    "sqlite3-factory": on_sqlite3_factory,
    "aiosqlite": on_aiosqlite,
    "aiosqlite-factory": on_aiosqlite_factory,
    "session": on_session("sqlite"),
    "sessionmaker": on_sessionmaker("sqlite"),
    "engine": on_engine("sqlite"),
    "async-session": on_async_session("sqlite+aiosqlite"),
    "async-sessionmaker": on_async_sessionmaker("sqlite+aiosqlite"),
    "django": on_django,
}
MYSQL: dict[str, Callable[[World], Any]] = {
    "pymysql": on_pymysql,
    "pymysql-factory": on_pymysql_factory,
    "asyncmy": on_asyncmy,
    "asyncmy-pool": on_asyncmy_pool,
    "session": on_session("mysql+pymysql"),
    "sessionmaker": on_sessionmaker("mysql+pymysql"),
    "engine": on_engine("mysql+pymysql"),
    "async-session": on_async_session("mysql+asyncmy"),
    "async-sessionmaker": on_async_sessionmaker("mysql+asyncmy"),
    "django": on_django,
}
MARIADB: dict[str, Callable[[World], Any]] = {
    "pymysql": on_pymysql,
    "asyncmy": on_asyncmy,
    "session": on_session("mariadb+pymysql"),
}
"""The same adapters as MySQL's; what differs is the server."""
ONE_OF_EACH = ("pymysql", "pymysql-factory", "asyncmy-pool", "session", "async-sessionmaker", "django")
"""Those of MySQL's that differ from PostgreSQL's in more than the driver; test_mysql.py goes through all of them."""
MONGODB: dict[str, Callable[[World], Any]] = {
    "client": on_mongo_client,
    "session": on_mongo_session,
    "async-client": on_async_mongo_client,
    "async-session": on_async_mongo_session,
}
DATABASES: dict[str, dict[str, Callable[[World], Any]]] = {
    "postgres": POSTGRES,
    "sqlite": SQLITE,
    "mysql": {name: MYSQL[name] for name in ONE_OF_EACH},
    "mariadb": {"pymysql": MARIADB["pymysql"]},
    "duckdb": {"connection": on_duckdb, "factory": on_duckdb_factory},
    "mongodb": MONGODB,
}
RIGS = {f"{database}-{name}": rig for database, rigs in DATABASES.items() for name, rig in rigs.items()}
