"""Connections of a driver that brings no pool of its own: a few are kept, the last one given back goes out first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, NamedTuple, TypeVar

from retrysafe.errors import StoreUnavailable

C = TypeVar("C")


class PoolHooks(NamedTuple, Generic[C]):
    """What a driver's connections are made and thrown away with."""

    connect: Callable[[], C]
    """Raises StoreUnavailable."""
    close: Callable[[C], object]
    """May raise anything: nobody listens."""
    none_free: Callable[[float], StoreUnavailable]
    closed: Callable[[], StoreUnavailable]
    gone: Callable[[C], bool] = lambda connection: False
    """Whether the other end of an idle one has left."""


class Pool(Generic[C]):
    """At most `size` connections, made when they are needed."""

    def __init__(self, ways: PoolHooks[C], size: int, timeout: float) -> None:
        self._hooks = ways
        self._timeout = timeout
        self._room = threading.BoundedSemaphore(size)
        self._idle: deque[C] = deque()
        self._drained = 0
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[C]:
        """One for the caller alone. It is kept if the block ends well, and thrown away otherwise: half a
        conversation may be left on it."""
        if not self._room.acquire(timeout=self._timeout):
            raise self._hooks.none_free(self._timeout)
        try:
            drained = self._drained
            taken = self._take()
            try:
                yield taken
            except BaseException:
                self._discard(taken)
                raise
            if self._closed or self._drained != drained:
                self._discard(taken)
            else:
                self._idle.append(taken)
        finally:
            self._room.release()

    def _take(self) -> C:
        if self._closed:
            raise self._hooks.closed()
        while True:
            try:
                found = self._idle.pop()
            except IndexError:
                return self._hooks.connect()
            if not self._hooks.gone(found):
                return found
            self._discard(found)

    def _discard(self, connection: C) -> None:
        with suppress(Exception):
            self._hooks.close(connection)

    def drain(self) -> None:
        """After a restart every connection is dead, and on a server that is not the primary any more none is of use:
        throw them all away now, not one per caller. Those in use go when they are given back."""
        self._drained += 1
        with suppress(IndexError):
            while True:
                self._discard(self._idle.pop())

    def close(self) -> None:
        self._closed = True
        self.drain()
