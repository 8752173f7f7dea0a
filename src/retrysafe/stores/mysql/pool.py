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
from retrysafe.stores.mysql.errors import closed, no_connection_free, swallowed, unreachable
from retrysafe.stores.mysql.settings import CHARSET, CONNECT_SECONDS, SETTINGS, SILENCE
from retrysafe.stores.sql.pool import Pool, Ways

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


class Connect(Protocol):
    """`pymysql.connect` with an address, or a function that ends in it. It is asked for each new connection."""

    def __call__(self, **settings: Any) -> Connection: ...


def opened(connect: Connect) -> Connection:
    """A connection that is set up as ours are, or StoreUnavailable. Whatever the function raises (no token for the
    password, no tunnel): there is no connection, so nothing can have happened."""
    connection: Connection | None = None
    try:
        connection = connect(
            autocommit=True,
            charset=CHARSET,
            client_flag=FLAGS,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=SILENCE,
            write_timeout=SILENCE,
        )
        if connection.client_flag & FLAGS != FLAGS:
            raise swallowed("pymysql")
        with connection.cursor() as cursor:
            for setting in SETTINGS:
                cursor.execute(setting)
    except BaseException as error:
        quit_quietly(connection)
        if isinstance(error, UsageError) or not isinstance(error, Exception):
            raise
        raise unreachable(error) from error
    return connection


def quit_quietly(connection: Connection | None) -> None:
    """Without a word to the server: it may not listen, and whoever closes does not want to wait."""
    with suppress(Exception):
        if connection is not None:
            connection._force_close()  # type: ignore[attr-defined]  # the stubs leave it out


def gone(socket: Any) -> bool:
    """Whether an idle connection's other end has something to say: it can only be that it left."""
    if socket is None:
        return True
    try:
        poll = select.poll()
        poll.register(socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def kept(connect: Connect, size: int, timeout: float) -> Pool[Connection]:
    ways: Ways[Connection] = Ways(
        connect=lambda: opened(connect),
        close=quit_quietly,
        none_free=no_connection_free,
        closed=closed,
        gone=lambda connection: gone(connection._sock),  # type: ignore[attr-defined]  # the stubs leave it out
    )
    return Pool(ways, size, timeout)
