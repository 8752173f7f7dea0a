# retrying.py is generated from this file: run `make twins` after a change.
"""Run an operation on a pooled connection, async, and run it again if the server rolled it back because of others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.sql.apool import AsyncPool
from retrysafe.stores.sql.plans import MAX_DEADLOCK_TRIES, ErrorFactories, LockNotAvailable, RetryNow
from retrysafe.stores.sql.shares import Use

C = TypeVar("C")
R = TypeVar("R")


async def arun_with_retries(
    pool: AsyncPool[C], work: Callable[[C], Awaitable[R]], errors: ErrorFactories, use: Use = "renewal"
) -> R:
    for _ in range(MAX_DEADLOCK_TRIES):
        try:
            return await _run_once(pool, work, errors, use)
        except RetryNow:
            continue
        except LockNotAvailable as error:
            raise errors.lock_timeout_error() from error
        except StoreUnclear:
            pool.drain()
            raise
        except StoreUnavailable as error:
            if errors.is_demoted(error):
                pool.drain()
            raise
    raise errors.too_many_deadlocks_error(MAX_DEADLOCK_TRIES)


async def _run_once(pool: AsyncPool[C], work: Callable[[C], Awaitable[R]], errors: ErrorFactories, use: Use) -> R:
    """Run it once. After an error that the server answered, the connection is as good as before and stays in the pool.
    A broken connection is closed; so is one to a server that takes no writes, and one whose caller was interrupted."""
    async with pool.connection(use) as connection:
        try:
            result: R | Exception = await work(connection)
        except StoreUnclear:
            raise
        except Exception as error:
            if errors.is_demoted(error):
                raise
            result = error
    if isinstance(result, Exception):
        raise result
    return result


__all__ = ["ErrorFactories", "RetryNow", "arun_with_retries"]
