# pool.py is generated from this file: run `make twins` after a change.
"""An async connection pool for drivers that have no pool. The connection that was returned last is used first. How many
connections each kind of use may have at once is in shares.py."""

from __future__ import annotations

import asyncio  # sync: import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, NamedTuple, TypeVar

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.sql.shares import AsyncShares, Use

C = TypeVar("C")

CLOSE_TIMEOUT_SECONDS = 1  # async only
"""How long `aclose` waits for one connection."""  # async only


class AsyncPoolHooks(NamedTuple, Generic[C]):
    """How a store makes and closes connections, and the errors of its pool."""

    connect: Callable[[], Awaitable[C]]
    """Open a connection. Raises StoreUnavailable."""
    close: Callable[[C], object]
    """Close the connection. Exceptions are suppressed."""
    none_free: Callable[[float], StoreUnavailable]
    closed: Callable[[], StoreUnavailable]
    gone: Callable[[C], bool] = lambda connection: False
    """True if the server has closed an idle connection."""
    # async only
    find_closer: Callable[[C], Callable[[], Awaitable[object]] | None] = lambda connection: None
    # async only
    """Called before `close`. Returns what to await after it: the socket must be closed before the event loop ends."""


class AsyncPool(Generic[C]):
    """At most `size` connections, opened when they are needed."""

    def __init__(self, hooks: AsyncPoolHooks[C], size: int, timeout: float) -> None:
        self._hooks = hooks
        self._timeout = timeout
        self._slots = asyncio.Semaphore(size)  # sync: self._slots = threading.BoundedSemaphore(size)
        self._shares = AsyncShares(size, timeout, lambda use, size, seconds: hooks.none_free(seconds))
        self._idle: deque[C] = deque()
        self._drained = 0
        self._closed = False

    @asynccontextmanager
    async def connection(self, use: Use = "renewal") -> AsyncIterator[C]:
        """A connection for the caller alone. The pool keeps it if the block ends well, and closes it otherwise: a
        reply that nobody has read may be left on it. A store that does not say what for may have every connection, as
        a renewal may."""
        await self._acquire_slot(use)
        try:
            drained = self._drained
            taken = await self._take()
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
            self._slots.release()
            self._shares.leave(use)

    async def _acquire_slot(self, use: Use) -> None:
        await self._shares.enter(use)
        try:
            await self._acquire_any_slot()
        except BaseException:
            self._shares.leave(use)
            raise

    async def _acquire_any_slot(self) -> None:
        # async only
        if not self._slots.locked():
            await self._slots.acquire()  # without a timer: a slot is free
            return
        # sync: if not self._slots.acquire(timeout=self._timeout):
        # sync:     raise self._hooks.none_free(self._timeout)
        try:
            async with asyncio.timeout(self._timeout):
                await self._slots.acquire()
        except TimeoutError as error:
            raise self._hooks.none_free(self._timeout) from error

    async def _take(self) -> C:
        if self._closed:
            raise self._hooks.closed()
        while True:
            try:
                found = self._idle.pop()
            except IndexError:
                return await self._hooks.connect()
            if not self._hooks.gone(found):
                return found
            self._discard(found)

    def _discard(self, connection: C) -> None:
        with suppress(Exception):
            self._hooks.close(connection)

    def drain(self) -> None:
        """Close all idle connections now, and those in use when they are returned. After a restart of the server every
        connection is dead; after a failover every one leads to a server that takes no writes."""
        self._drained += 1
        with suppress(IndexError):
            while True:
                self._discard(self._idle.pop())

    async def aclose(self) -> None:
        self._closed = True
        closers = [self._hooks.find_closer(connection) for connection in self._idle]  # async only
        self.drain()
        # async only
        for closer in closers:
            with suppress(Exception):
                if closer is not None:
                    await asyncio.wait_for(closer(), CLOSE_TIMEOUT_SECONDS)
