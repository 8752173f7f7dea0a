"""What psycopg raises, read: did the server say no, or did it go silent?"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from retrysafe.errors import (
    RetrySafeError,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
)
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.sql.plans import LockNotAvailable

SERIALIZATION_CODES = frozenset({"40001", "40P01"})
"""Nothing happened, and the same thing may work now: serialization failure, deadlock."""

LOCK_NOT_AVAILABLE_CODE = "55P03"
READ_ONLY = "25006"
_SCHEMA_MISSING_CODES = frozenset({"42P01", "3F000", "42703"})
_SHUTDOWN_CODES = frozenset({"57P01", "57P02", "57P03", "57P05"})


class RetryNow(Exception):
    """Send it again at once: the server rolled back and said why."""


def translate_error(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours; Held and Again stay inside the store.

    In a batch a held row spoils the transaction for everybody in it, so it is no answer to one claim there.
    """
    if isinstance(error, RetrySafeError | LockNotAvailable | RetryNow):
        return error
    if isinstance(error, PoolTimeout | TooManyRequests):
        return StoreUnavailable(
            f"no connection to PostgreSQL within the pool's timeout: {error}; is it up, is ?pool= large enough?"
        )
    if isinstance(error, PoolClosed):
        return StoreUnavailable(f"this store was closed: {error}; open a new one")
    if isinstance(error, UnicodeError):
        return unstorable_value_error(error)
    if not isinstance(error, psycopg.Error):
        return error
    code = error.sqlstate
    if code is None and isinstance(error, psycopg.DataError):
        return unstorable_value_error(error)
    if code is None:
        return StoreUnclear(f"the connection to PostgreSQL broke: {_first_line(error)}")
    if batch and code == LOCK_NOT_AVAILABLE_CODE:
        return BatchRefused("a key of this batch is held by an open transaction; send the operations one by one")
    return _translate_reply(code, error, url)


class ConnectFailures:
    """Whether a pool's timeout means that no connection could be made, or only that all of them are taken: in the first
    case the pool has counted more failures to connect than when it was last asked."""

    def __init__(self) -> None:
        self._failed = 0

    def refine_error(self, error: Exception, stats: Callable[[], dict[str, int]]) -> Exception:
        if not isinstance(error, PoolTimeout):
            return error
        before, self._failed = self._failed, stats().get("connections_errors", 0)
        if self._failed == before:
            return error
        return StoreUnreachable(
            f"no connection to PostgreSQL could be made ({_first_line(error)}): nothing was done; is it up?"
        )


def unstorable_value_error(error: Exception) -> StoreError:
    """The driver cannot write this value for PostgreSQL (a NUL, half a surrogate pair): nothing was sent."""
    return StoreError(
        f"a value of this operation cannot be stored in PostgreSQL: {_first_line(error)}; nothing was done"
    )


def lock_timeout_error() -> StoreUnavailable:
    """A lock timeout (the role's or the database's own) that no plan has an answer to: only claims may be Busy."""
    return StoreUnavailable(
        "the key's row is held by an open transaction for longer than lock_timeout; nothing was done: "
        "end that transaction, and send the operation again"
    )


def _translate_reply(code: str, error: psycopg.Error, url: str) -> Exception:
    """The server answered, so its word counts."""
    if code in SERIALIZATION_CODES:
        return RetryNow(_first_line(error))
    if code == LOCK_NOT_AVAILABLE_CODE:
        return LockNotAvailable(_first_line(error))
    if code in _SCHEMA_MISSING_CODES:
        return SchemaMissing(f"PostgreSQL says: {_first_line(error)}", url)
    if code in _SHUTDOWN_CODES or code.startswith("08"):
        return StoreUnclear(f"PostgreSQL ended the connection ({code}): {_first_line(error)}")
    if code == READ_ONLY:
        return StoreUnavailable(
            "PostgreSQL is read-only here (a standby?); nothing was done, and the next call connects anew: "
            "point the URL at the primary"
        )
    if code.startswith(("53", "54", "58")):
        return StoreUnavailable(f"PostgreSQL has no room or failed ({code}): {_first_line(error)}")
    return StoreError(f"PostgreSQL refused ({code}): {_first_line(error)}")


def demoted(error: StoreUnavailable) -> bool:
    """Whether the server said that it is read-only: a primary that another has taken over from, or a standby."""
    return getattr(error.__cause__, "sqlstate", None) == READ_ONLY


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
