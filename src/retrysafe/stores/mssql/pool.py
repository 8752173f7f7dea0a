"""Connections through pymssql: a few are kept, the last one given back goes out first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymssql

from retrysafe.stores.mssql.errors import closed, no_connection_free, unreachable
from retrysafe.stores.mssql.settings import CONNECT_SECONDS, SETTINGS, SILENCE


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


class Pool:
    """At most `size` connections, made when they are needed."""

    def __init__(self, arguments: dict[str, Any], size: int, timeout: float) -> None:
        self._arguments = arguments
        self._timeout = timeout
        self._room = threading.BoundedSemaphore(size)
        self._idle: deque[Any] = deque()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Any]:
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

    def _take(self) -> Any:
        if self._closed:
            raise closed()
        try:
            return self._idle.pop()
        except IndexError:
            return connect(self._arguments)

    def drain(self) -> None:
        """After a restart every idle connection is dead: throw them all away now, not one per caller."""
        with suppress(IndexError):
            while True:
                quit_quietly(self._idle.pop())

    def close(self) -> None:
        self._closed = True
        self.drain()


def quit_quietly(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
