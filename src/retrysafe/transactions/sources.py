"""From whatever a user holds (a pool, a session, a path, a factory) to a source of transactions.

Objects are recognised by the names of their classes, so that no driver is imported that the user does not have.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from retrysafe.errors import UsageError, WrongColour
from retrysafe.stores.sqlite.file import parse_url
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Colour, Tx, TxSource


class Adapter(NamedTuple):
    """How one class of objects opens a transaction. `closes`: one that a factory made is closed after use."""

    colour: Colour
    module: str
    opener: str
    closes: bool = False

    def open(self, given: Any) -> Any:
        opener: Callable[[Any], Any] = getattr(self.load(), self.opener)
        return opener(given)

    def load(self) -> Any:
        try:
            return import_module(f"retrysafe.transactions.{self.module}")
        except ImportError as error:
            raise UsageError(f"a transaction on this needs a module that is not there ({error}); install it") from error


KNOWN: dict[tuple[str, str], Adapter] = {
    ("psycopg", "Connection"): Adapter("sync", "on_psycopg", "connection", closes=True),
    ("psycopg", "AsyncConnection"): Adapter("async", "on_psycopg", "async_connection", closes=True),
    ("psycopg_pool", "ConnectionPool"): Adapter("sync", "on_psycopg", "pool"),
    ("psycopg_pool", "AsyncConnectionPool"): Adapter("async", "on_psycopg", "async_pool"),
    ("asyncpg", "Connection"): Adapter("async", "on_asyncpg", "connection", closes=True),
    ("asyncpg", "PoolConnectionProxy"): Adapter("async", "on_asyncpg", "connection"),
    ("asyncpg", "Pool"): Adapter("async", "on_asyncpg", "pool"),
    ("pymysql", "Connection"): Adapter("sync", "on_pymysql", "connection", closes=True),
    ("asyncmy", "Connection"): Adapter("async", "on_asyncmy", "connection", closes=True),
    ("asyncmy", "Pool"): Adapter("async", "on_asyncmy", "pool"),
    ("pymongo", "MongoClient"): Adapter("sync", "on_pymongo", "client"),
    ("pymongo", "ClientSession"): Adapter("sync", "on_pymongo", "session"),
    ("pymongo", "AsyncMongoClient"): Adapter("async", "on_pymongo", "async_client"),
    ("pymongo", "AsyncClientSession"): Adapter("async", "on_pymongo", "async_session"),
    ("sqlite3", "Connection"): Adapter("sync", "on_sqlite3", "connection", closes=True),
    ("aiosqlite", "Connection"): Adapter("async", "on_aiosqlite", "connection", closes=True),
    ("pymssql", "Connection"): Adapter("sync", "on_pymssql", "connection", closes=True),
    ("_duckdb", "DuckDBPyConnection"): Adapter("sync", "on_duckdb", "connection", closes=True),
    ("sqlalchemy", "Session"): Adapter("sync", "on_sqlalchemy", "session", closes=True),
    ("sqlalchemy", "sessionmaker"): Adapter("sync", "on_sqlalchemy", "maker"),
    ("sqlalchemy", "scoped_session"): Adapter("sync", "on_sqlalchemy", "scoped"),
    ("sqlalchemy", "Connection"): Adapter("sync", "on_sqlalchemy", "connection", closes=True),
    ("sqlalchemy", "Engine"): Adapter("sync", "on_sqlalchemy", "engine"),
    ("sqlalchemy", "AsyncSession"): Adapter("async", "on_sqlalchemy_async", "session", closes=True),
    ("sqlalchemy", "async_sessionmaker"): Adapter("async", "on_sqlalchemy_async", "maker"),
    ("sqlalchemy", "async_scoped_session"): Adapter("async", "on_sqlalchemy_async", "scoped"),
    ("sqlalchemy", "AsyncConnection"): Adapter("async", "on_sqlalchemy_async", "connection", closes=True),
    ("sqlalchemy", "AsyncEngine"): Adapter("async", "on_sqlalchemy_async", "engine"),
    ("django", "BaseDatabaseWrapper"): Adapter("sync", "on_django", "wrapper"),
}

DJANGO = Adapter("sync", "on_django", "alias")
FILES: dict[Colour, Adapter] = {
    "sync": Adapter("sync", "on_sqlite3", "path"),
    "async": Adapter("async", "on_aiosqlite", "path"),
}

ACCEPTED = (
    "a psycopg or asyncpg connection or pool, a PyMySQL connection, an asyncmy connection or pool, a sqlite3 or "
    "aiosqlite connection, the path of an SQLite file, a DuckDB connection, a pymssql connection, "
    "a pymongo client or session, "
    "a SQLAlchemy Session, sessionmaker, Engine or one of their async twins, 'django:<alias>', "
    "or a callable that makes one of these"
)


@overload
def source(given: Any, colour: Literal["sync"]) -> TxSource: ...
@overload
def source(given: Any, colour: Literal["async"]) -> AsyncTxSource: ...
def source(given: Any, colour: Colour) -> TxSource | AsyncTxSource:
    """Where transactions of this colour come from."""
    adapter = adapter_of(given, colour)
    if adapter is not None:
        right_colour(given, adapter, colour)
        return Opening(given, adapter)
    if isinstance(given, TxSource):
        return given
    if callable(given):
        return Factory(given) if colour == "sync" else AsyncFactory(given)
    raise UsageError(f"tx={given!r} is a {kind(given)}, which cannot open a transaction; give {ACCEPTED}")


def adapter_of(given: Any, colour: Colour) -> Adapter | None:
    if isinstance(given, str | Path):
        return _for_text(str(given), colour)
    for base in type(given).__mro__:
        adapter = KNOWN.get((base.__module__.partition(".")[0], base.__name__))
        if adapter is not None:
            return adapter
    return None


def _for_text(given: str, colour: Colour) -> Adapter:
    if given.startswith("django:"):
        return DJANGO
    if "://" in given and not given.startswith("sqlite://"):
        raise UsageError(f"tx={given!r} is a URL; make a pool or an engine from it once, and pass that")
    return FILES[colour]


def right_colour(given: Any, adapter: Adapter, colour: Colour) -> None:
    if adapter.colour != colour:
        other = "async" if colour == "sync" else "sync"
        raise WrongColour(
            f"tx={given!r} is {adapter.colour}, but it is used in {colour} code; pass its {colour} twin, "
            f"or call it from {other} code"
        )


class Opening:
    """A known object with its adapter, as a source of either colour."""

    def __init__(self, given: Any, adapter: Adapter) -> None:
        self._given = parse_url(given).path if isinstance(given, str) and given.startswith("sqlite://") else given
        self._adapter = adapter

    def begin(self) -> Any:
        return self._adapter.open(self._given)


class Factory:
    """A callable that makes a connection or session (closed by us), or a context manager that gives one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def begin(self) -> AbstractContextManager[Tx]:
        return self._begin()

    @contextmanager
    def _begin(self) -> Iterator[Tx]:
        made = self._make()
        adapter = adapter_of(made, "sync")
        if adapter is None and hasattr(made, "__enter__"):
            with made as inner, source_of_made(inner, "sync").begin() as tx:
                yield tx
            return
        made_source = source_of_made(made, "sync")
        try:
            with made_source.begin() as tx:
                yield tx
        finally:
            if adapter is not None and adapter.closes:
                made.close()


class AsyncFactory:
    """The same for async code; the callable may be async."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def begin(self) -> AbstractAsyncContextManager[AsyncTx]:
        return self._begin()

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncTx]:
        made = self._make()
        adapter = adapter_of(made, "async")
        if adapter is None and hasattr(made, "__aenter__"):
            async with made as inner, source_of_made(inner, "async").begin() as tx:
                yield tx
            return
        if adapter is None and inspect.isawaitable(made):
            made = await made
            adapter = adapter_of(made, "async")
        if adapter is not None and adapter.module == "on_aiosqlite":
            made = await adapter.load().started(made)
        made_source = source_of_made(made, "async")
        try:
            async with made_source.begin() as tx:
                yield tx
        finally:
            if adapter is not None and adapter.closes:
                closing = made.close()
                if inspect.isawaitable(closing):  # asyncmy's is not
                    await closing


@overload
def source_of_made(made: Any, colour: Literal["sync"]) -> TxSource: ...
@overload
def source_of_made(made: Any, colour: Literal["async"]) -> AsyncTxSource: ...
def source_of_made(made: Any, colour: Colour) -> TxSource | AsyncTxSource:
    """What a factory made must be known itself: a factory of factories is a mistake."""
    adapter = adapter_of(made, colour)
    if adapter is None or isinstance(made, str | Path):
        raise UsageError(f"the callable given as tx made {made!r}, a {kind(made)}; it must make one of: {ACCEPTED}")
    right_colour(made, adapter, colour)
    return Opening(made, adapter)


def kind(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"
