"""Connections to SQL Server through pymssql, their settings and their pool."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pymssql

from retrysafe.stores.sql.pool import Pool, PoolHooks
from retrysafe_mssql.errors import pool_exhausted_error, store_closed_error, unreachable_error

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 15
"""How long a connected server may send nothing before the connection counts as broken."""

LOCK_TIMEOUT_MS = 1000
"""How long a statement waits for a row that another transaction has locked (I28)."""

SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET LOCK_TIMEOUT {LOCK_TIMEOUT_MS}",
    "SET XACT_ABORT OFF",
    "SET NOCOUNT ON",
)
"""Sent on each of our connections, whatever the server's defaults are. READ COMMITTED works by locks or by versions
(READ_COMMITTED_SNAPSHOT), as the database is set: every write tests the row that it has locked. XACT_ABORT is off,
because a duplicate key is an expected result and must not end the transaction."""


def connect(arguments: dict[str, Any]) -> Any:
    """A connection of our own, or StoreUnavailable. The driver has no type information, so it is Any here."""
    try:
        connection = pymssql.connect(
            **arguments,
            autocommit=True,
            charset="UTF-8",
            login_timeout=CONNECT_TIMEOUT_SECONDS,
            timeout=READ_TIMEOUT_SECONDS,
        )
        with connection.cursor() as cursor:
            for setting in SETTINGS:
                cursor.execute(setting)
    except (pymssql.Error, OSError) as error:
        raise unreachable_error(error) from error
    return connection


def build_pool(arguments: dict[str, Any], size: int, timeout: float) -> Pool[Any]:
    hooks: PoolHooks[Any] = PoolHooks(
        connect=lambda: connect(arguments),
        close=quit_quietly,
        none_free=pool_exhausted_error,
        closed=store_closed_error,
    )
    return Pool(hooks, size, timeout)


def quit_quietly(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
