"""Connections of the async colour, through asyncmy. The twin of pool.py; they belong to one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from asyncmy.constants import CLIENT

from retrysafe.errors import UsageError
from retrysafe.stores.mysql.errors import (
    pool_exhausted_error,
    settings_swallowed_error,
    store_closed_error,
    unreachable_error,
)
from retrysafe.stores.mysql.settings import CHARSET, CONNECT_TIMEOUT_SECONDS, SETTINGS

CLIENT_FLAGS: int = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


class AsyncConnect(Protocol):
    """`asyncmy.connect` with an address, or an async function that ends in it. It is asked for each new connection.
    asyncmy's connections have no type information, so they are Any here."""

    def __call__(self, **settings: Any) -> Awaitable[Any]: ...


async def open_connection(connect: AsyncConnect) -> Any:
    """A connection that is set up as ours are, or StoreUnavailable. Whatever the function raises (no token for the
    password, no tunnel): there is no connection, so nothing can have happened."""
    connection: Any = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            connection = await connect(
                autocommit=True, charset=CHARSET, client_flag=CLIENT_FLAGS, connect_timeout=CONNECT_TIMEOUT_SECONDS
            )
            if connection._client_flag & CLIENT_FLAGS != CLIENT_FLAGS:
                raise settings_swallowed_error("asyncmy")
            async with connection.cursor() as cursor:
                for setting in SETTINGS:
                    await cursor.execute(setting)
    except BaseException as error:
        quit_quietly(connection)
        if isinstance(error, UsageError) or not isinstance(error, Exception):
            raise
        raise unreachable_error(error) from error
    return connection


class AsyncPool:
    """At most `size` connections, made when they are needed."""

    def __init__(self, connect: AsyncConnect, size: int, timeout: float) -> None:
        self._connect = connect
        self._timeout = timeout
        self._room = asyncio.Semaphore(size)
        self._idle: deque[Any] = deque()
        self._drained = 0
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """One for the caller alone. It is kept if the block ends well, and thrown away otherwise: half a
        conversation may be left on it."""
        await self._enter()
        try:
            drained = self._drained
            taken = await self._take()
            try:
                yield taken
            except BaseException:
                quit_quietly(taken)
                raise
            if self._closed or self._drained != drained:
                quit_quietly(taken)
            else:
                self._idle.append(taken)
        finally:
            self._room.release()

    async def _enter(self) -> None:
        if not self._room.locked():
            await self._room.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._room.acquire()
        except TimeoutError as error:
            raise pool_exhausted_error(self._timeout) from error

    async def _take(self) -> Any:
        if self._closed:
            raise store_closed_error()
        while self._idle:
            found = self._idle.pop()
            if not found._stream_broken:  # the loop has heard of it, if the other end left
                return found
            quit_quietly(found)
        return await open_connection(self._connect)

    def drain(self) -> None:
        """After a restart every connection is dead, and on a server that is not the primary any more none is of use:
        throw them all away now, not one per caller. Those in use go when they are given back."""
        self._drained += 1
        while self._idle:
            quit_quietly(self._idle.pop())

    async def aclose(self) -> None:
        self._closed = True
        leaving = [found._proto for found in self._idle if found._proto is not None]
        self.drain()
        for proto in leaving:
            with suppress(Exception):
                await asyncio.wait_for(proto.wait_closed(), 1)


def quit_quietly(connection: Any) -> None:
    """Without a word to the server: it may not listen, and whoever closes does not want to wait."""
    with suppress(Exception):
        if connection is not None:
            connection.close()
