"""Connections of the sync colour.

FOUND_ROWS counts the rows a write matched: a heartbeat that changes nothing is a heartbeat all the same.
"""

from __future__ import annotations

import select
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import CLIENT

from retrysafe.stores.mysql.errors import closed, no_connection_free, unreachable
from retrysafe.stores.mysql.settings import CONNECT_SECONDS, SETTINGS, SILENCE
from retrysafe.stores.sql.pool import Pool, Ways

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

FLAGS = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


def connect(arguments: dict[str, Any]) -> Connection:
    """A connection of our own, or StoreUnavailable."""
    try:
        connection: Connection = pymysql.connect(
            **arguments,
            autocommit=True,
            client_flag=FLAGS,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=SILENCE,
            write_timeout=SILENCE,
        )
        with connection.cursor() as cursor:
            for setting in SETTINGS:
                cursor.execute(setting)
    except (pymysql.MySQLError, OSError, EOFError, RuntimeError) as error:
        raise unreachable(error) from error
    return connection


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


def pool(arguments: dict[str, Any], size: int, timeout: float) -> Pool[Connection]:
    # Closed without a word to the server: it may not listen, and whoever closes does not want to wait.
    ways: Ways[Connection] = Ways(
        connect=lambda: connect(arguments),
        close=lambda connection: connection._force_close(),  # type: ignore[attr-defined]  # the stubs leave it out
        none_free=no_connection_free,
        closed=closed,
        gone=lambda connection: gone(connection._sock),  # type: ignore[attr-defined]  # the stubs leave it out
    )
    return Pool(ways, size, timeout)
