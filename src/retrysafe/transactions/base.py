"""The two protocols of a user's transaction, sync and async: `Tx`, a transaction that is open, and `TxSource`, which
opens one. Every driver has an adapter (`on_*.py`). The code above uses only the protocols.

Rules for every adapter:

1.  `begin()` opens the outermost transaction of a connection, or raises NestedTransaction. On SQLite the transaction
    has the write lock when the block is entered; otherwise LockNotAvailable is raised within LOCK_TIMEOUT_SECONDS.
2.  Leaving the block commits. Leaving it by an exception rolls back, and the exception is raised on. If a hook of the
    user's that runs after the commit raises, the adapter raises AfterCommitError.
3.  `send` runs one of our statements on that very connection, whatever row factory the user has set. An adapter
    translates no error of its driver: `failures.py` classifies them, and the user's own errors with them.

An adapter may also have `committed` (whether its handle saw the user's code commit) and `send_direct` (see SendDirect).
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
"""How long a transaction waits for SQLite's write lock before its caller gets InProgress. A connection with a shorter
busy timeout waits only for that."""

PSYCOPG = replace(postgres.DIALECT, limit="", brief="")
SQLITE = sqlite.DIALECT
POSTGRES = replace(PSYCOPG, parameter=":{}")
"""For SQLAlchemy's text(), and for asyncpg, whose numbers come from `number_parameters`."""
MYSQL = mysql.DIALECT
"""For PyMySQL, asyncmy and Django."""
MYSQL_NAMED = replace(MYSQL, parameter=":{}")
"""For SQLAlchemy's text()."""
SQLITE_FORMAT = replace(SQLITE, parameter="%({})s")
"""For Django, whose cursor has the same parameter style on every database."""


class AfterCommitError(Exception):
    """A hook of the user's that runs after the commit raised. The commit took place."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the commit took place, and then failed: {error}")
        self.error = error


class Tx(Protocol):
    """An open transaction, sync."""

    @property
    def handle(self) -> Any:
        """The connection or session that the user's code gets."""

    @property
    def dialect(self) -> Dialect:
        """The SQL of this database in the parameter style of this driver."""

    @property
    def dialect_name(self) -> DialectName: ...
    def send(self, statement: Statement) -> Rows: ...
    def flush(self) -> None:
        """Write the pending objects of a session. A plain connection has none."""


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
    """Opens transactions, sync."""

    def begin(self) -> AbstractContextManager[Tx]: ...


@runtime_checkable
class AsyncTxSource(Protocol):
    """Opens transactions, async."""

    def begin(self) -> AbstractAsyncContextManager[AsyncTx]: ...


def fill_now(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with `now` from the host's clock, because SQLite has no clock that counts microseconds. The caller has
    the write lock when this is called."""
    filled = dict(values)
    if values.get("now", 0) is None:
        filled["now"] = time.time_ns() // 1000
    return filled


_NAMED = re.compile(r"(?<!:):([a-z_]+)")


@lru_cache(maxsize=256)
def number_parameters(sql: str) -> tuple[str, tuple[str, ...]]:
    """The SQL with `$1` instead of `:name`, and the names in the order of their numbers."""
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
    """Our name of a database, from the name that SQLAlchemy and Django have for it."""
    name = DIALECT_NAMES.get(vendor)
    if name is None:
        raise UsageError(
            f"a transaction on {vendor!r} cannot carry a receipt yet; it can on {', '.join(DIALECT_NAMES)}. "
            "Protect the work with @safe.once or an operation instead"
        )
    return name
