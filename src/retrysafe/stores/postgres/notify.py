"""LISTEN and NOTIFY. Only for routes that wait: a NOTIFY takes a lock on the whole database at commit.

Behind a pooler in transaction mode LISTEN hears nothing; then whoever waits simply looks again after its time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from retrysafe.stores.notify import LISTEN_POLL_SECONDS, OnNotify, ShouldContinue
from retrysafe.stores.sql.names import TableNames

NOTIFY_QUERY = "SELECT pg_notify(%s, %s)"


def channel_name(names: TableNames) -> str:
    """One per installation. The name is a checked one, so it may stand in SQL."""
    return f"{names.bare}_settled"


def listen(conninfo: str, names: TableNames, heard: OnNotify, wanted: ShouldContinue) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel_name(names)}"')
        while wanted():
            for message in connection.notifies(timeout=LISTEN_POLL_SECONDS):
                _dispatch(message, heard)


async def alisten(conninfo: str, names: TableNames, heard: OnNotify, wanted: ShouldContinue) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(f'LISTEN "{channel_name(names)}"')
        while wanted():
            async for message in connection.notifies(timeout=LISTEN_POLL_SECONDS):
                _dispatch(message, heard)


def _dispatch(message: Any, heard: OnNotify) -> None:
    with suppress(ValueError):  # somebody else speaks on our channel
        heard(bytes.fromhex(message.payload))
