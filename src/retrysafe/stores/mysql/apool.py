"""Connections of the async store, through asyncmy. They belong to one event loop. The sync ones are in pool.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from asyncmy.constants import CLIENT

from retrysafe.errors import UsageError
from retrysafe.stores.mysql.dialect import CHARSET, CONNECT_TIMEOUT_SECONDS, SETTINGS
from retrysafe.stores.mysql.errors import (
    pool_exhausted_error,
    settings_swallowed_error,
    store_closed_error,
    unreachable_error,
)
from retrysafe.stores.sql.apool import AsyncPool, AsyncPoolHooks

CLIENT_FLAGS: int = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS


class AsyncConnect(Protocol):
    """`asyncmy.connect` with an address, or an async function that calls it. The pool calls it for each connection.
    asyncmy's connections have no type information, so they are Any here."""

    def __call__(self, **settings: Any) -> Awaitable[Any]: ...


async def open_connection(connect: AsyncConnect) -> Any:
    """Open a connection and apply SETTINGS. Any error of the user's function (no token for the password, no tunnel)
    becomes StoreUnavailable: without a connection nothing was sent."""
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


def build_pool(connect: AsyncConnect, size: int, timeout: float) -> AsyncPool[Any]:
    hooks: AsyncPoolHooks[Any] = AsyncPoolHooks(
        connect=lambda: open_connection(connect),
        close=quit_quietly,
        none_free=pool_exhausted_error,
        closed=store_closed_error,
        gone=lambda connection: bool(connection._stream_broken),  # the event loop has read the end of file
        find_closer=_find_closer,
    )
    return AsyncPool(hooks, size, timeout)


def _find_closer(connection: Any) -> Callable[[], Awaitable[object]] | None:
    return None if connection._proto is None else connection._proto.wait_closed


def quit_quietly(connection: Any) -> None:
    """Close the socket without the goodbye of the protocol: the server may not answer, and the caller must not wait."""
    with suppress(Exception):
        if connection is not None:
            connection.close()
