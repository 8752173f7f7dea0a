"""LISTEN and NOTIFY. Used only for routes that wait: a NOTIFY takes a lock on the whole database at commit.

Behind a pooler in transaction mode LISTEN receives nothing. Waiting callers then find the result at their next poll.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from retrysafe.stores.notify import LISTEN_POLL_SECONDS, OnNotify, ShouldContinue
from retrysafe.stores.sql.names import TableNames

NOTIFY_QUERY = "SELECT pg_notify(%s, %s)"


def channel_name(names: TableNames) -> str:
    """The channel of an installation. build_names has checked the name, so it is safe in SQL."""
    return f"{names.bare}_settled"


def listen(conninfo: str, names: TableNames, on_notify: OnNotify, should_continue: ShouldContinue) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel_name(names)}"')
        while should_continue():
            for message in connection.notifies(timeout=LISTEN_POLL_SECONDS):
                _dispatch(message, on_notify)


async def alisten(conninfo: str, names: TableNames, on_notify: OnNotify, should_continue: ShouldContinue) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(f'LISTEN "{channel_name(names)}"')
        while should_continue():
            async for message in connection.notifies(timeout=LISTEN_POLL_SECONDS):
                _dispatch(message, on_notify)


def _dispatch(message: Any, on_notify: OnNotify) -> None:
    with suppress(ValueError):  # a payload that is not ours
        on_notify(bytes.fromhex(message.payload))
