"""An operation on one of a pool's connections, sent again where the server undid it because of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.sql.plans import LockNotAvailable
from retrysafe.stores.sql.pool import Pool

C = TypeVar("C")
R = TypeVar("R")

MAX_DEADLOCK_TRIES = 20
"""Deadlocks in a row before giving up; each means that somebody else got on."""


class RetryNow(Exception):
    """Send it again at once: the server rolled back and said why."""


class ErrorFactories(NamedTuple):
    """How a store says that it gave up."""

    lock_timeout_error: Callable[[], StoreUnavailable]
    too_many_deadlocks_error: Callable[[int], StoreUnavailable]
    is_demoted: Callable[[Exception], bool]
    """Whether it refused because it is not the primary (any more): the next connection may lead to the one that is."""


def run_with_retries(pool: Pool[C], work: Callable[[C], R], words: ErrorFactories) -> R:
    for _ in range(MAX_DEADLOCK_TRIES):
        try:
            return _run_once(pool, work, words)
        except RetryNow:
            continue
        except LockNotAvailable as error:
            raise words.lock_timeout_error() from error
        except StoreUnclear:
            pool.drain()
            raise
        except StoreUnavailable as error:
            if words.is_demoted(error):
                pool.drain()
            raise
    raise words.too_many_deadlocks_error(MAX_DEADLOCK_TRIES)


def _run_once(pool: Pool[C], work: Callable[[C], R], words: ErrorFactories) -> R:
    """What the server refused leaves the connection as good as before; only a broken one is thrown away, or one that
    leads to a server which takes no writes."""
    with pool.connection() as connection:
        try:
            done: R | Exception = work(connection)
        except StoreUnclear:
            raise
        except Exception as error:
            if words.is_demoted(error):
                raise
            done = error
    if isinstance(done, Exception):
        raise done
    return done
