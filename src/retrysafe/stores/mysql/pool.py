"""Connections of the sync colour.

FOUND_ROWS counts the rows a write matched: a heartbeat that changes nothing is a heartbeat all the same.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import pymysql
from pymysql.constants import CLIENT

from retrysafe.errors import UsageError
from retrysafe.stores.mysql.errors import (
    pool_exhausted_error,
    settings_swallowed_error,
    store_closed_error,
    unreachable_error,
)
from retrysafe.stores.mysql.settings import CHARSET, CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, SETTINGS
from retrysafe.stores.sql.pool import Pool, PoolHooks

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

CLIENT_FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


class Connect(Protocol):
    """`pymysql.connect` with an address, or a function that ends in it. It is asked for each new connection."""

    def __call__(self, **settings: Any) -> Connection: ...


def open_connection(connect: Connect) -> Connection:
    """A connection that is set up as ours are, or StoreUnavailable. Whatever the function raises (no token for the
    password, no tunnel): there is no connection, so nothing can have happened."""
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
    """Without a word to the server: it may not listen, and whoever closes does not want to wait."""
    with suppress(Exception):
        if connection is not None:
            connection._force_close()  # type: ignore[attr-defined]  # the stubs leave it out


def is_gone(socket: Any) -> bool:
    """Whether an idle connection's other end has something to say: it can only be that it left."""
    if socket is None:
        return True
    try:
        poll = select.poll()
        poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def build_pool(connect: Connect, size: int, timeout: float) -> Pool[Connection]:
    ways: PoolHooks[Connection] = PoolHooks(
        connect=lambda: open_connection(connect),
        close=quit_quietly,
        none_free=pool_exhausted_error,
        closed=store_closed_error,
        gone=lambda connection: is_gone(connection._sock),  # type: ignore[attr-defined]  # the stubs leave it out
    )
    return Pool(ways, size, timeout)
