"""What is recognised as a source of transactions, sync or async, and the errors for everything else."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.errors import NestedTransaction, NotSameDatabase, SyncAsyncMismatch, UsageError
from retrysafe.transactions import arun, find_source, run
from retrysafe.transactions.base import number_parameters
from tests.transactions.rigs import SCOPE, World, sqlalchemy_write, sqlite_write, task

RELEASE = Policy(failures="release")
ANSWER = Answer(201, {"ok": True})


class Base(DeclarativeBase): ...


class Effect(Base):
    __tablename__ = "effects"
    value: Mapped[str] = mapped_column(primary_key=True)


def once(world: World, given: Any, write: Any = sqlite_write, key: str = "k") -> bool:
    """Whether it ran."""

    def body(handle: Any) -> Answer:
        write(handle, key)
        return ANSWER

    return not run(world.safe, task(world.safe, key, 1, RELEASE), given, body).replayed


async def aonce(world: World, given: Any, write: Any = sqlite_write, key: str = "k") -> bool:
    async def body(handle: Any) -> Answer:
        await write(handle, key)
        return ANSWER

    ended = await arun(world.safe, task(world.safe, key, 1, RELEASE), given, body)
    return not ended.replayed


# SQLite -------------------------------------------------------------------------------------------


@pytest.mark.store("sqlite")
def test_a_path_a_url_and_a_context_manager_serve(sqlite: World) -> None:
    @contextmanager
    def opened() -> Any:
        connection = sqlite3.connect(sqlite.path)
        yield connection
        connection.close()

    for number, given in enumerate((sqlite.path, sqlite.url, Path(sqlite.path), opened)):
        assert once(sqlite, given, key=f"k{number}")
        assert not once(sqlite, given, key=f"k{number}")
    assert len(sqlite.effects()) == 4


@pytest.mark.store("sqlite")
async def test_a_path_and_factories_serve_in_async_code(sqlite: World) -> None:
    async def opened() -> Any:
        return await aiosqlite.connect(sqlite.path)

    for number, given in enumerate((sqlite.path, opened, lambda: aiosqlite.connect(sqlite.path))):
        assert await aonce(sqlite, given, key=f"k{number}")
        assert not await aonce(sqlite, given, key=f"k{number}")
    await sqlite.safe.aclose()


@pytest.mark.store("sqlite")
def test_a_connection_that_a_factory_made_is_closed(sqlite: World) -> None:
    made: list[sqlite3.Connection] = []

    def make() -> sqlite3.Connection:
        made.append(sqlite3.connect(sqlite.path))
        return made[-1]

    once(sqlite, make)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


@pytest.mark.store("sqlite")
def test_scoped_sessions_and_sessions_with_their_own_begin(sqlite: World) -> None:
    engine = create_engine(sqlite.url, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def no_implicit_begin(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def explicit_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    scoped = scoped_session(sessionmaker(engine))
    assert once(sqlite, scoped, sqlalchemy_write)
    assert not once(sqlite, scoped, sqlalchemy_write)
    scoped.remove()
    engine.dispose()


@pytest.mark.store("sqlite")
async def test_async_scoped_sessions_and_connections(sqlite: World) -> None:
    engine = create_async_engine(sqlite.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    assert await aonce(sqlite, scoped, sqlalchemy_write, "a")
    await scoped.remove()
    assert await aonce(sqlite, engine, sqlalchemy_write, "b")
    async with engine.connect() as connection:
        assert await aonce(sqlite, connection, sqlalchemy_write, "c")
    assert sqlite.effects() == ["a", "b", "c"]
    await engine.dispose()
    await sqlite.safe.aclose()


@pytest.mark.store("sqlite")
def test_pending_objects_of_a_session_are_written_before_the_receipt(sqlite: World) -> None:
    engine = create_engine(sqlite.url, poolclass=NullPool)
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda c, k, sql, *more: sent.append(sql.split()[0:3]))
    once(sqlite, sessionmaker(engine), lambda session, value: session.add(Effect(value=value)))
    writes = [" ".join(words) for words in sent if words[0] in ("INSERT", "UPDATE")]
    assert writes == ['INSERT INTO "retrysafe_keys"', "INSERT INTO effects", 'UPDATE "retrysafe_keys" SET']
    engine.dispose()


@pytest.mark.store("sqlite")
def test_one_commit_in_all(sqlite: World) -> None:
    connection = sqlite3.connect(sqlite.path)
    once(sqlite, connection, key="warm")
    sent: list[str] = []
    connection.set_trace_callback(sent.append)
    once(sqlite, connection)
    connection.set_trace_callback(None)
    assert [sql for sql in sent if sql.startswith(("BEGIN", "COMMIT", "ROLLBACK"))] == ["BEGIN IMMEDIATE", "COMMIT"]
    assert sent[-1] == "COMMIT"
    assert sent[-2].startswith('UPDATE "retrysafe_keys"'), "the receipt is the last thing written"
    connection.close()


@pytest.mark.store("sqlite")
def test_the_busy_timeout_of_the_connection_is_put_back(sqlite: World) -> None:
    connection = sqlite3.connect(sqlite.path, timeout=0.05)
    once(sqlite, connection, key="a")
    with sqlite.safe.transaction(sqlite.path, key="held", scope=SCOPE) as held:
        with pytest.raises(Exception, match="worked on"):
            once(sqlite, connection, key="b")
        assert not once(sqlite, connection, key="a"), "a stored answer is given while another writes"
        held.answer = ANSWER
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (50,)
    connection.close()


@pytest.mark.store("sqlite")
def test_another_file_is_another_database(sqlite: World, tmp_path: Any) -> None:
    other = RetrySafe(f"sqlite:///{tmp_path}/other.db")
    other.migrate()
    with pytest.raises(NotSameDatabase):
        once(sqlite, f"{tmp_path}/other.db")
    other.close()


# PostgreSQL ---------------------------------------------------------------------------------------


@pytest.mark.store("postgres")
async def test_asyncpg_factories(postgres: World) -> None:
    def write(connection: Any, value: str) -> Any:
        return connection.execute("INSERT INTO effects (value) VALUES ($1)", value)

    pool = await asyncpg.create_pool(postgres.plain, min_size=1, max_size=1)
    assert await aonce(postgres, lambda: asyncpg.connect(postgres.plain), write, "a")
    assert await aonce(postgres, pool.acquire, write, "b")
    await pool.close()
    assert postgres.effects() == ["a", "b"]
    await postgres.safe.aclose()


@pytest.mark.store("postgres")
def test_a_connection_in_a_transaction_is_refused(postgres: World) -> None:
    with psycopg.connect(postgres.plain) as connection:
        connection.execute("SELECT 1")
        with pytest.raises(NestedTransaction, match="commit or roll back first"):
            once(postgres, connection)


# Refusals -----------------------------------------------------------------------------------------


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(UsageError, match=r"builtins\.int.*psycopg.*sessionmaker.*django"):
        find_source(7, "sync")
    with pytest.raises(UsageError, match="is a URL; make a pool"):
        find_source("postgresql://host/db", "sync")


def test_what_a_factory_made_is_named(sqlite: World) -> None:
    with pytest.raises(UsageError, match=r"made 7, a builtins\.int"):
        once(sqlite, lambda: 7)


async def test_the_wrong_colour_is_refused(sqlite: World) -> None:
    connection = sqlite3.connect(sqlite.path)
    with pytest.raises(SyncAsyncMismatch, match="is sync, but it is used in async code"):
        find_source(connection, "async")
    with pytest.raises(SyncAsyncMismatch):
        find_source("django:default", "async")
    connection.close()
    async with aiosqlite.connect(sqlite.path) as other:
        with pytest.raises(SyncAsyncMismatch):
            find_source(other, "sync")


def test_a_store_without_tables_is_refused() -> None:
    safe = RetrySafe("memory://")
    with pytest.raises(UsageError, match="no receipt can commit"), safe.transaction("x.db", key="k", scope="s"):
        pass


def test_names_become_numbers() -> None:
    assert number_parameters("SELECT :a, :b::bigint, :a, 'x'::text") == (
        "SELECT $1, $2::bigint, $1, 'x'::text",
        ("a", "b"),
    )
