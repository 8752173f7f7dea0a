"""An open transaction on the user's own database, and where one comes from. Two small protocols in two colours;
every driver has an adapter (`on_*.py`), and nothing above knows which one it talks to.

Rules every adapter keeps:

1.  `begin()` opens the outermost transaction of a connection, or raises NestedTransaction. On SQLite it holds the
    write lock when it yields, or raises Held within PATIENCE.
2.  Leaving the block commits, leaving it by an exception rolls back, and the exception goes on.
    Where hooks of the user's run after the commit, and one of them raises, that is AfterCommit.
3.  `send` runs one of our statements on that very connection, whatever row factory its owner has set. Nothing a
    driver raises is translated here: `failures.py` reads it, with the user's own errors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

from retrysafe.errors import UsageError
from retrysafe.stores.mysql import dialect as mysql
from retrysafe.stores.postgres import dialect as postgres
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sqlite import file as sqlite

SyncMode = Literal["sync", "async"]
DialectName = Literal["postgres", "sqlite", "mysql", "duckdb", "mssql", "mongodb"]
Rows = list[Sequence[Any]]

LOCK_TIMEOUT_SECONDS = 2.0
"""Seconds a transaction waits for SQLite's one write lock before its caller is told to come back; a connection
whose own busy timeout is shorter waits only for that."""

PSYCOPG = replace(postgres.DIALECT, limit="", brief="")
SQLITE = sqlite.DIALECT
POSTGRES = replace(PSYCOPG, parameter=":{}")
"""For SQLAlchemy's text(), and for asyncpg, which gets numbers from `numbered`."""
MYSQL = mysql.DIALECT
"""For PyMySQL, asyncmy and Django."""
MYSQL_NAMED = replace(MYSQL, parameter=":{}")
"""For SQLAlchemy's text()."""
SQLITE_FORMAT = replace(SQLITE, parameter="%({})s")
"""For Django, whose cursor wants the same style on every database."""


class AfterCommitError(Exception):
    """The commit took place; what failed came after it: a hook of the user's that waits for the commit."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the commit took place, and then failed: {error}")
        self.error = error


class Tx(Protocol):
    """An open transaction, sync."""

    @property
    def handle(self) -> Any:
        """What the user's code gets: the connection or the session."""

    @property
    def dialect(self) -> Dialect:
        """The words of this database in the parameter style of this driver."""

    @property
    def dialect_name(self) -> DialectName: ...
    def send(self, statement: Statement) -> Rows: ...
    def flush(self) -> None:
        """Write what the handle still holds back (a session's pending objects)."""


class AsyncTx(Protocol):
    """An open transaction, async."""

    @property
    def handle(self) -> Any: ...
    @property
    def dialect(self) -> Dialect: ...
    @property
    def dialect_name(self) -> DialectName: ...
    async def send(self, statement: Statement) -> Rows: ...
    async def flush(self) -> None: ...


@runtime_checkable
class TxSource(Protocol):
    """Where transactions come from, sync."""

    def begin(self) -> AbstractContextManager[Tx]: ...


@runtime_checkable
class AsyncTxSource(Protocol):
    """Where transactions come from, async."""

    def begin(self) -> AbstractAsyncContextManager[AsyncTx]: ...


class LockNotAvailable(Exception):
    """The write lock of the file was not to be had in time."""


def fill_now(values: Mapping[str, Any]) -> dict[str, Any]:
    """SQLite has no clock that counts microseconds: the host's is read when the statement is sent, lock in hand."""
    filled = dict(values)
    if values.get("now", 0) is None:
        filled["now"] = time.time_ns() // 1000
    return filled


_NAMED = re.compile(r"(?<!:):([a-z_]+)")


@lru_cache(maxsize=256)
def number_parameters(sql: str) -> tuple[str, tuple[str, ...]]:
    """`:name` as `$1`, and the names in the order of their numbers."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match.group(1), len(names) + 1)}"

    return _NAMED.sub(number, sql), tuple(names)


DIALECT_NAMES: dict[str, DialectName] = {
    "postgresql": "postgres",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def dialect_for_vendor(vendor: str) -> DialectName:
    """What SQLAlchemy and Django call a database, in our words."""
    name = DIALECT_NAMES.get(vendor)
    if name is None:
        raise UsageError(
            f"a transaction on {vendor!r} cannot carry a receipt yet; it can on {', '.join(DIALECT_NAMES)}. "
            "Protect the work with @safe.once or an operation instead"
        )
    return name
