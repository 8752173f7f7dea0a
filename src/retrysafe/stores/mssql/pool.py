"""Connections through pymssql."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pymssql

from retrysafe.stores.mssql.errors import pool_exhausted_error, store_closed_error, unreachable_error
from retrysafe.stores.mssql.settings import CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, SETTINGS
from retrysafe.stores.sql.pool import Pool, PoolHooks


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
    ways: PoolHooks[Any] = PoolHooks(
        connect=lambda: connect(arguments),
        close=quit_quietly,
        none_free=pool_exhausted_error,
        closed=store_closed_error,
    )
    return Pool(ways, size, timeout)


def quit_quietly(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
