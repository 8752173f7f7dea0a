"""An operation on one of a pool's connections, sent again where the server undid it because of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.sql.plans import Held
from retrysafe.stores.sql.pool import Pool

C = TypeVar("C")
R = TypeVar("R")

TRIES = 20
"""Deadlocks in a row before giving up; each means that somebody else got on."""


class Again(Exception):
    """Send it again at once: the server rolled back and said why."""


class Words(NamedTuple):
    """How a store says that it gave up."""

    held_elsewhere: Callable[[], StoreUnavailable]
    too_many_undone: Callable[[int], StoreUnavailable]
    demoted: Callable[[Exception], bool]
    """Whether it refused because it is not the primary (any more): the next connection may lead to the one that is."""


def attempted(pool: Pool[C], work: Callable[[C], R], words: Words) -> R:
    for _ in range(TRIES):
        try:
            return _once(pool, work, words)
        except Again:
            continue
        except Held as error:
            raise words.held_elsewhere() from error
        except StoreUnclear:
            pool.drain()
            raise
        except StoreUnavailable as error:
            if words.demoted(error):
                pool.drain()
            raise
    raise words.too_many_undone(TRIES)


def _once(pool: Pool[C], work: Callable[[C], R], words: Words) -> R:
    """What the server refused leaves the connection as good as before; only a broken one is thrown away, or one that
    leads to a server which takes no writes."""
    with pool.connection() as connection:
        try:
            done: R | Exception = work(connection)
        except StoreUnclear:
            raise
        except Exception as error:
            if words.demoted(error):
                raise
            done = error
    if isinstance(done, Exception):
        raise done
    return done
