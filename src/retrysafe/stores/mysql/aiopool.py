"""Connections of the async colour, through asyncmy. The twin of pool.py; they belong to one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncmy
from asyncmy.constants import CLIENT
from asyncmy.errors import MySQLError

from retrysafe.stores.mysql.errors import closed, no_connection_free, unreachable
from retrysafe.stores.mysql.settings import CONNECT_SECONDS, SETTINGS

FLAGS: int = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


async def connect(arguments: dict[str, Any]) -> Any:
    """A connection of our own, or StoreUnavailable. asyncmy's has no type information, so it is Any here."""
    connection: Any = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await asyncmy.connect(
                **arguments, autocommit=True, client_flag=FLAGS, connect_timeout=CONNECT_SECONDS
            )
            async with connection.cursor() as cursor:
                for setting in SETTINGS:
                    await cursor.execute(setting)
    except (MySQLError, OSError, EOFError, RuntimeError) as error:  # TimeoutError is an OSError
        quit_quietly(connection)
        raise unreachable(error) from error
    except BaseException:
        quit_quietly(connection)
        raise
    return connection


class AsyncPool:
    """At most `size` connections, made when they are needed."""

    def __init__(self, arguments: dict[str, Any], size: int, timeout: float) -> None:
        self._arguments = arguments
        self._timeout = timeout
        self._room = asyncio.Semaphore(size)
        self._idle: deque[Any] = deque()
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """One for the caller alone. It is kept if the block ends well, and thrown away otherwise: half a
        conversation may be left on it."""
        await self._enter()
        try:
            taken = await self._take()
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

    async def _enter(self) -> None:
        if not self._room.locked():
            await self._room.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._room.acquire()
        except TimeoutError as error:
            raise no_connection_free(self._timeout) from error

    async def _take(self) -> Any:
        if self._closed:
            raise closed()
        while self._idle:
            found = self._idle.pop()
            if not found._stream_broken:  # the loop has heard of it, if the other end left
                return found
            quit_quietly(found)
        return await connect(self._arguments)

    def drain(self) -> None:
        """After a restart every idle connection is dead: throw them all away now, not one per caller."""
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
