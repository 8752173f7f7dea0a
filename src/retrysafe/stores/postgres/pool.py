"""The connection pools of psycopg that the async and the sync store open from a URL, and where they connect to."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from retrysafe.stores.postgres.dialect import PostgresLocation

AsyncPool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]
Pool = ConnectionPool[psycopg.Connection[Any]]


class CancellableConnection(psycopg.AsyncConnection[Any]):
    """A connection that can be cancelled while it connects.

    The pool's worker treats a cancellation during `connect` as a failed attempt and waits for the next task.
    `asyncio.run` cancels every task once, at its end, and would then wait for that worker for ever. So `connect`
    cancels the task a second time: the worker ends at its next await.
    """

    @classmethod
    async def connect(cls, *args: Any, **kwargs: Any) -> Self:
        try:
            return await super().connect(*args, **kwargs)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.cancel()
            raise


def abuild_pool(at: PostgresLocation) -> AsyncPool:
    """A pool that is not open yet: it can only be opened while an event loop runs."""
    return AsyncConnectionPool(
        at.conninfo,
        connection_class=CancellableConnection,
        # With min_size=1 the first caller finds that connection still connecting, and the pool makes a second one.
        min_size=0,
        max_size=at.pool,
        timeout=at.pool_timeout,
        kwargs={"autocommit": True},
        name="retrysafe",
        open=False,
    )


def build_pool(at: PostgresLocation) -> Pool:
    """An open pool. It connects in its own threads."""
    return ConnectionPool(
        at.conninfo,
        min_size=1,
        max_size=at.pool,
        timeout=at.pool_timeout,
        kwargs={"autocommit": True},
        name="retrysafe",
        open=True,
    )


async def aread_conninfo(pool: AsyncPool) -> str:
    """Where the pool connects to. A pool may have a function in the place of the text."""
    given = pool.conninfo
    conninfo = given() if callable(given) else given
    return conninfo if isinstance(conninfo, str) else await conninfo


def read_conninfo(pool: Pool) -> str:
    """Where the pool connects to. A pool may have a function in the place of the text."""
    given = pool.conninfo
    return given if isinstance(given, str) else given()
