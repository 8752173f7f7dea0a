"""Find the adapter for the object that a user passes as `tx`: a pool, a session, a path, a factory.

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

from retrysafe.errors import SyncAsyncMismatch, UsageError
from retrysafe.stores.sqlite.file import parse_url
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, SyncMode, Tx, TxSource


class Adapter(NamedTuple):
    """How one class of objects opens a transaction. `closes`: an object that a factory made is closed after use."""

    sync_mode: SyncMode
    module: str
    opener: str
    closes: bool = False

    def open(self, given: Any) -> Any:
        opener: Callable[[Any], Any] = getattr(self.load(), self.opener)
        return opener(given)

    def load(self) -> Any:
        try:
            return import_module(self.module if "." in self.module else f"retrysafe.transactions.{self.module}")
        except ImportError as error:
            raise UsageError(f"a transaction on this needs a module that is not there ({error}); install it") from error


ADAPTERS: dict[tuple[str, str], Adapter] = {
    ("psycopg", "Connection"): Adapter("sync", "on_psycopg", "begin_on_connection", closes=True),
    ("psycopg", "AsyncConnection"): Adapter("async", "on_psycopg", "abegin_on_connection", closes=True),
    ("psycopg_pool", "ConnectionPool"): Adapter("sync", "on_psycopg", "begin_on_pool"),
    ("psycopg_pool", "AsyncConnectionPool"): Adapter("async", "on_psycopg", "abegin_on_pool"),
    ("asyncpg", "Connection"): Adapter("async", "on_asyncpg", "begin_on_connection", closes=True),
    ("asyncpg", "PoolConnectionProxy"): Adapter("async", "on_asyncpg", "begin_on_connection"),
    ("asyncpg", "Pool"): Adapter("async", "on_asyncpg", "begin_on_pool"),
    ("pymysql", "Connection"): Adapter("sync", "on_pymysql", "begin_on_connection", closes=True),
    ("asyncmy", "Connection"): Adapter("async", "on_asyncmy", "begin_on_connection", closes=True),
    ("asyncmy", "Pool"): Adapter("async", "on_asyncmy", "begin_on_pool"),
    ("pymongo", "MongoClient"): Adapter("sync", "on_pymongo", "begin_on_client"),
    ("pymongo", "ClientSession"): Adapter("sync", "on_pymongo", "begin_on_session"),
    ("pymongo", "AsyncMongoClient"): Adapter("async", "on_pymongo", "abegin_on_client"),
    ("pymongo", "AsyncClientSession"): Adapter("async", "on_pymongo", "abegin_on_session"),
    ("sqlite3", "Connection"): Adapter("sync", "on_sqlite3", "begin_on_connection", closes=True),
    ("aiosqlite", "Connection"): Adapter("async", "on_aiosqlite", "begin_on_connection", closes=True),
    ("_duckdb", "DuckDBPyConnection"): Adapter("sync", "on_duckdb", "begin_on_connection", closes=True),
    ("sqlalchemy", "Session"): Adapter("sync", "on_sqlalchemy", "begin_on_session", closes=True),
    ("sqlalchemy", "sessionmaker"): Adapter("sync", "on_sqlalchemy", "begin_on_sessionmaker"),
    ("sqlalchemy", "scoped_session"): Adapter("sync", "on_sqlalchemy", "begin_on_scoped_session"),
    ("sqlalchemy", "Connection"): Adapter("sync", "on_sqlalchemy", "begin_on_connection", closes=True),
    ("sqlalchemy", "Engine"): Adapter("sync", "on_sqlalchemy", "begin_on_engine"),
    ("sqlalchemy", "AsyncSession"): Adapter("async", "on_sqlalchemy_async", "begin_on_session", closes=True),
    ("sqlalchemy", "async_sessionmaker"): Adapter("async", "on_sqlalchemy_async", "begin_on_sessionmaker"),
    ("sqlalchemy", "async_scoped_session"): Adapter("async", "on_sqlalchemy_async", "begin_on_scoped_session"),
    ("sqlalchemy", "AsyncConnection"): Adapter("async", "on_sqlalchemy_async", "begin_on_connection", closes=True),
    ("sqlalchemy", "AsyncEngine"): Adapter("async", "on_sqlalchemy_async", "begin_on_engine"),
    ("django", "BaseDatabaseWrapper"): Adapter("sync", "on_django", "begin_on_wrapper"),
}


def register_adapter(module: str, class_name: str, adapter: Adapter) -> None:
    """Accept objects of one more class as `tx`. `module` is the top-level module of the class. A distribution of ours
    calls it when it is imported (distributions/retrysafe-mssql); its `Adapter.module` is a full module name."""
    ADAPTERS[module, class_name] = adapter


DJANGO = Adapter("sync", "on_django", "begin_on_alias")
FILES: dict[SyncMode, Adapter] = {
    "sync": Adapter("sync", "on_sqlite3", "begin_on_path"),
    "async": Adapter("async", "on_aiosqlite", "begin_on_path"),
}

ACCEPTED = (
    "a psycopg or asyncpg connection or pool, a PyMySQL connection, an asyncmy connection or pool, a sqlite3 or "
    "aiosqlite connection, the path of an SQLite file, a DuckDB connection, a pymssql connection (retrysafe-mssql), "
    "a pymongo client or session, "
    "a SQLAlchemy Session, sessionmaker, Engine or one of their async twins, 'django:<alias>', "
    "or a callable that makes one of these"
)


@overload
def find_source(given: Any, sync_mode: Literal["sync"]) -> TxSource: ...
@overload
def find_source(given: Any, sync_mode: Literal["async"]) -> AsyncTxSource: ...
def find_source(given: Any, sync_mode: SyncMode) -> TxSource | AsyncTxSource:
    """The source of transactions for what the user gave, sync or async."""
    adapter = find_adapter(given, sync_mode)
    if adapter is not None:
        check_sync_mode(given, adapter, sync_mode)
        return AdaptedSource(given, adapter)
    if isinstance(given, TxSource):
        return given
    if callable(given):
        return FactorySource(given) if sync_mode == "sync" else AsyncFactorySource(given)
    raise UsageError(f"tx={given!r} is a {type_name(given)}, which cannot open a transaction; give {ACCEPTED}")


def find_adapter(given: Any, sync_mode: SyncMode) -> Adapter | None:
    if isinstance(given, str | Path):
        return _find_text_adapter(str(given), sync_mode)
    for base in type(given).__mro__:
        adapter = ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if adapter is not None:
            return adapter
    return None


def _find_text_adapter(given: str, sync_mode: SyncMode) -> Adapter:
    if given.startswith("django:"):
        return DJANGO
    if "://" in given and not given.startswith("sqlite://"):
        raise UsageError(f"tx={given!r} is a URL; make a pool or an engine from it once, and pass that")
    return FILES[sync_mode]


def check_sync_mode(given: Any, adapter: Adapter, sync_mode: SyncMode) -> None:
    if adapter.sync_mode != sync_mode:
        other = "async" if sync_mode == "sync" else "sync"
        raise SyncAsyncMismatch(
            f"tx={given!r} is {adapter.sync_mode}, but it is used in {sync_mode} code; pass its {sync_mode} twin, "
            f"or call it from {other} code"
        )


class AdaptedSource:
    """A known object with its adapter, as a source of sync or async transactions."""

    def __init__(self, given: Any, adapter: Adapter) -> None:
        self._given = parse_url(given).path if isinstance(given, str) and given.startswith("sqlite://") else given
        self._adapter = adapter

    def begin(self) -> Any:
        return self._adapter.open(self._given)


class FactorySource:
    """A callable that makes a connection or session, which this source closes, or a context manager that yields one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def begin(self) -> AbstractContextManager[Tx]:
        return self._begin()

    @contextmanager
    def _begin(self) -> Iterator[Tx]:
        made = self._make()
        adapter = find_adapter(made, "sync")
        if adapter is None and hasattr(made, "__enter__"):
            with made as inner, find_made_source(inner, "sync").begin() as tx:
                yield tx
            return
        made_source = find_made_source(made, "sync")
        try:
            with made_source.begin() as tx:
                yield tx
        finally:
            if adapter is not None and adapter.closes:
                made.close()


class AsyncFactorySource:
    """The same for async code. The callable may be async."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def begin(self) -> AbstractAsyncContextManager[AsyncTx]:
        return self._begin()

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncTx]:
        made = self._make()
        adapter = find_adapter(made, "async")
        if adapter is None and hasattr(made, "__aenter__"):
            async with made as inner, find_made_source(inner, "async").begin() as tx:
                yield tx
            return
        if adapter is None and inspect.isawaitable(made):
            made = await made
            adapter = find_adapter(made, "async")
        if adapter is not None and adapter.module == "on_aiosqlite":
            made = await adapter.load().ensure_started(made)
        made_source = find_made_source(made, "async")
        try:
            async with made_source.begin() as tx:
                yield tx
        finally:
            if adapter is not None and adapter.closes:
                closing = made.close()
                if inspect.isawaitable(closing):  # asyncmy's close() is not async
                    await closing


@overload
def find_made_source(made: Any, sync_mode: Literal["sync"]) -> TxSource: ...
@overload
def find_made_source(made: Any, sync_mode: Literal["async"]) -> AsyncTxSource: ...
def find_made_source(made: Any, sync_mode: SyncMode) -> TxSource | AsyncTxSource:
    """The source for an object that a factory made. It must have an adapter: a factory of factories is refused."""
    adapter = find_adapter(made, sync_mode)
    if adapter is None or isinstance(made, str | Path):
        raise UsageError(
            f"the callable given as tx made {made!r}, a {type_name(made)}; it must make one of: {ACCEPTED}"
        )
    check_sync_mode(made, adapter, sync_mode)
    return AdaptedSource(made, adapter)


def type_name(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"
