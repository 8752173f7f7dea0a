"""LISTEN and NOTIFY. Only for routes that wait: a NOTIFY takes a lock on the whole database at commit.

Behind a pooler in transaction mode LISTEN hears nothing; then whoever waits simply looks again after its time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from retrysafe.stores.sql.names import Names
from retrysafe.stores.waking import BEAT, Heard, Wanted

NOTIFY = "SELECT pg_notify(%s, %s)"


def channel(names: Names) -> str:
    """One per installation. The name is a checked one, so it may stand in SQL."""
    return f"{names.bare}_settled"


def listen(conninfo: str, names: Names, heard: Heard, wanted: Wanted) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel(names)}"')
        while wanted():
            for message in connection.notifies(timeout=BEAT):
                _tell(message, heard)


async def alisten(conninfo: str, names: Names, heard: Heard, wanted: Wanted) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(f'LISTEN "{channel(names)}"')
        while wanted():
            async for message in connection.notifies(timeout=BEAT):
                _tell(message, heard)


def _tell(message: Any, heard: Heard) -> None:
    with suppress(ValueError):  # somebody else speaks on our channel
        heard(bytes.fromhex(message.payload))
