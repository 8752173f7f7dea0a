"""Connections of the sync store, through PyMySQL. The async ones are in apool.py.

With the flag FOUND_ROWS a write reports the rows it matched, also if it did not change them: a heartbeat that changes
nothing must count as one row.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import pymysql
from pymysql.constants import CLIENT

from retrysafe.errors import UsageError
from retrysafe.stores.mysql.dialect import CHARSET, CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, SETTINGS
from retrysafe.stores.mysql.errors import (
    pool_exhausted_error,
    settings_swallowed_error,
    store_closed_error,
    unreachable_error,
)
from retrysafe.stores.sql.pool import Pool, PoolHooks

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

CLIENT_FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


class Connect(Protocol):
    """`pymysql.connect` with an address, or a function that calls it. The pool calls it for each connection."""

    def __call__(self, **settings: Any) -> Connection: ...


def open_connection(connect: Connect) -> Connection:
    """Open a connection and apply SETTINGS. Any error of the user's function (no token for the password, no tunnel)
    becomes StoreUnavailable: without a connection nothing was sent."""
    connection: Connection | None = None
    try:
        connection = connect(
            autocommit=True,
            charset=CHARSET,
            client_flag=CLIENT_FLAGS,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=READ_TIMEOUT_SECONDS,
            write_timeout=READ_TIMEOUT_SECONDS,
        )
        if connection.client_flag & CLIENT_FLAGS != CLIENT_FLAGS:
            raise settings_swallowed_error("pymysql")
        with connection.cursor() as cursor:
            for setting in SETTINGS:
                cursor.execute(setting)
    except BaseException as error:
        quit_quietly(connection)
        if isinstance(error, UsageError) or not isinstance(error, Exception):
            raise
        raise unreachable_error(error) from error
    return connection


def quit_quietly(connection: Connection | None) -> None:
    """Close the socket without the goodbye of the protocol: the server may not answer, and the caller must not wait."""
    with suppress(Exception):
        if connection is not None:
            connection._force_close()  # type: ignore[attr-defined]  # the stubs leave it out


def is_gone(socket: Any) -> bool:
    """True if the idle socket is readable. The server sends nothing unasked, so readable means that it closed the
    connection."""
    if socket is None:
        return True
    try:
        poll = select.poll()
        poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def build_pool(connect: Connect, size: int, timeout: float) -> Pool[Connection]:
    hooks: PoolHooks[Connection] = PoolHooks(
        connect=lambda: open_connection(connect),
        close=quit_quietly,
        none_free=pool_exhausted_error,
        closed=store_closed_error,
        gone=lambda connection: is_gone(connection._sock),  # type: ignore[attr-defined]  # the stubs leave it out
    )
    return Pool(hooks, size, timeout)
