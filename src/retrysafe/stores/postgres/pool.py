"""The connection pools of psycopg that the async and the sync store open from a URL, and where they connect to.

A pool that cannot connect tries again after one second, two, four, and so on for `reconnect_timeout`, and no caller
makes it hurry. With psycopg's five minutes, an application stays away for as long again as the server was. So a pool
gives up after `pool_timeout`, as its callers do, and the next caller makes it connect at once.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Self

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from retrysafe.stores.postgres.dialect import PostgresLocation

AsyncPool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]
Pool = ConnectionPool[psycopg.Connection[Any]]


def describe_failure(error: psycopg.Error) -> str:
    """What libpq or the server said, in one line."""
    return " ".join(str(error).split())[:300]


def read_failure(pool: AsyncPool | Pool) -> str:
    """Why the last connection of this pool could not be made; empty if that is not known."""
    return str(getattr(pool.connection_class, "failure", ""))


class ReportingConnection(psycopg.Connection[Any]):
    """Keeps why it could not be made. A pool only logs it, and its callers learn that they waited for too long. Each
    pool has a class of its own."""

    failure: ClassVar[str] = ""

    @classmethod
    def connect(cls, *args: Any, **kwargs: Any) -> Self:
        try:
            return super().connect(*args, **kwargs)
        except psycopg.Error as error:
            cls.failure = describe_failure(error)
            raise


class CancellableConnection(psycopg.AsyncConnection[Any]):
    """A connection that can be cancelled while it connects.

    The pool's worker treats a cancellation during `connect` as a failed attempt and waits for the next task.
    `asyncio.run` cancels every task once, at its end, and would then wait for that worker for ever. So `connect`
    cancels the task a second time: the worker ends at its next await. It keeps why it could not be made, as
    ReportingConnection does.
    """

    failure: ClassVar[str] = ""

    @classmethod
    async def connect(cls, *args: Any, **kwargs: Any) -> Self:
        try:
            return await super().connect(*args, **kwargs)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.cancel()
            raise
        except psycopg.Error as error:
            cls.failure = describe_failure(error)
            raise


def abuild_pool(at: PostgresLocation) -> AsyncPool:
    """A pool that is not open yet: it can only be opened while an event loop runs."""
    return AsyncConnectionPool(
        at.conninfo,
        connection_class=type("PoolConnection", (CancellableConnection,), {}),
        # With min_size=1 the first caller finds that connection still connecting, and the pool makes a second one.
        min_size=0,
        max_size=at.pool,
        timeout=at.pool_timeout,
        reconnect_timeout=at.pool_timeout,
        kwargs={"autocommit": True},
        name="retrysafe",
        open=False,
    )


def build_pool(at: PostgresLocation) -> Pool:
    """An open pool. It connects in its own threads."""
    return ConnectionPool(
        at.conninfo,
        connection_class=type("PoolConnection", (ReportingConnection,), {}),
        min_size=1,
        max_size=at.pool,
        timeout=at.pool_timeout,
        reconnect_timeout=at.pool_timeout,
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
