"""Connections of the sync colour: a few are kept, the last one given back goes out first.

FOUND_ROWS counts the rows a write matched: a heartbeat that changes nothing is a heartbeat all the same.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import CLIENT

from retrysafe.stores.mysql.errors import closed, no_connection_free, unreachable
from retrysafe.stores.mysql.settings import CONNECT_SECONDS, SETTINGS, SILENCE

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


class Pool:
    """At most `size` connections, made when they are needed."""

    def __init__(self, arguments: dict[str, Any], size: int, timeout: float) -> None:
        self._arguments = arguments
        self._timeout = timeout
        self._room = threading.BoundedSemaphore(size)
        self._idle: deque[Connection] = deque()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """One for the caller alone. It is kept if the block ends well, and thrown away otherwise: half a
        conversation may be left on it."""
        if not self._room.acquire(timeout=self._timeout):
            raise no_connection_free(self._timeout)
        try:
            taken = self._take()
            try:
                yield taken
            except BaseException:
                quit_quietly(taken)
                raise
            if self._closed:
                quit_quietly(taken)
            else:
                self._idle.append(taken)
        finally:
            self._room.release()

    def _take(self) -> Connection:
        if self._closed:
            raise closed()
        while True:
            try:
                found = self._idle.pop()
            except IndexError:
                return connect(self._arguments)
            if not gone(found._sock):  # type: ignore[attr-defined]  # the stubs leave it out
                return found
            quit_quietly(found)

    def drain(self) -> None:
        """After a restart every idle connection is dead: throw them all away now, not one per caller."""
        with suppress(IndexError):
            while True:
                quit_quietly(self._idle.pop())

    def close(self) -> None:
        self._closed = True
        self.drain()


def quit_quietly(connection: Connection) -> None:
    """Without a word to the server: it may not listen, and whoever closes does not want to wait."""
    with suppress(Exception):
        connection._force_close()  # type: ignore[attr-defined]  # the stubs leave it out
