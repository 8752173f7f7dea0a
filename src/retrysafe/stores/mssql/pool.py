"""Connections through pymssql."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pymssql

from retrysafe.stores.mssql.errors import closed, no_connection_free, unreachable
from retrysafe.stores.mssql.settings import CONNECT_SECONDS, SETTINGS, SILENCE
from retrysafe.stores.sql.pool import Pool, Ways


def connect(arguments: dict[str, Any]) -> Any:
    """A connection of our own, or StoreUnavailable. The driver has no type information, so it is Any here."""
    try:
        connection = pymssql.connect(
            **arguments, autocommit=True, charset="UTF-8", login_timeout=CONNECT_SECONDS, timeout=SILENCE
        )
        with connection.cursor() as cursor:
            for setting in SETTINGS:
                cursor.execute(setting)
    except (pymssql.Error, OSError) as error:
        raise unreachable(error) from error
    return connection


def pool(arguments: dict[str, Any], size: int, timeout: float) -> Pool[Any]:
    ways: Ways[Any] = Ways(
        connect=lambda: connect(arguments),
        close=quit_quietly,
        none_free=no_connection_free,
        closed=closed,
    )
    return Pool(ways, size, timeout)


def quit_quietly(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
