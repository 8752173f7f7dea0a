"""Translation of psycopg's exceptions: did the server refuse the operation, or is its outcome unclear?"""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from retrysafe.core.texts import first_line as _first_line
from retrysafe.errors import (
    RetrySafeError,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
)
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.postgres.pool import AsyncPool, Pool, read_failure
from retrysafe.stores.sql.plans import LockNotAvailable, RetryNow
from retrysafe.stores.sql.shares import Use
from retrysafe.stores.sql.sqlstates import (
    LOCK_NOT_AVAILABLE_CODE,
    READ_ONLY_CODE,
    SCHEMA_MISSING_CODES,
    SERIALIZATION_CODES,
    is_connection_lost,
)


def translate_error(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours. LockNotAvailable and RetryNow are handled inside the store.

    In a batch, one locked row fails the whole transaction, so it is no reply to a single claim.
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
    """Tells a pool timeout without any connection from one because all connections are in use. In the first case the
    pool has counted more failures to connect since the last timeout."""

    def __init__(self) -> None:
        self._failed = 0

    def refine_error(self, error: Exception, pool: AsyncPool | Pool) -> Exception:
        if not isinstance(error, PoolTimeout):
            return error
        before, self._failed = self._failed, pool.get_stats().get("connections_errors", 0)
        if self._failed == before:
            return error
        why = read_failure(pool) or _first_line(error)
        return StoreUnreachable(
            f"no connection to PostgreSQL could be made ({why}): nothing was done; is it up, and are host, user and "
            "database right?"
        )


def unstorable_value_error(error: Exception) -> StoreError:
    """For a value that the driver cannot encode for PostgreSQL (a NUL, half a surrogate pair): nothing was sent."""
    return StoreError(
        f"a value of this operation cannot be stored in PostgreSQL: {_first_line(error)}; nothing was done"
    )


def lock_timeout_error() -> StoreUnavailable:
    """For a lock timeout that no plan handles: only a claim may be answered with Busy."""
    return StoreUnavailable(
        "the key's row is held by an open transaction for longer than lock_timeout; nothing was done: "
        "end that transaction, and send the operation again"
    )


def no_share_error(use: Use, size: int, seconds: float) -> PoolTimeout:
    return PoolTimeout(f"all connections that this use ({use}) may have of {size} were in use for {seconds:g} s")


def serialization_error(tries: int, *, batch: bool) -> StoreError:
    """For serialization failures that do not end. Nothing was done. A batch is one transaction over many keys, so each
    commit on one of them makes it fail; its operations get through one by one."""
    what = f"PostgreSQL answered {tries} serialization failures in a row"
    if batch:
        return BatchRefused(f"{what} to this batch; send the operations one by one")
    return StoreUnavailable(f"{what}; nothing was done: try again")


def _translate_reply(code: str, error: psycopg.Error, url: str) -> Exception:
    """Translate an error that the server answered, by its SQLSTATE."""
    if code in SERIALIZATION_CODES:
        return RetryNow(_first_line(error))
    if code == LOCK_NOT_AVAILABLE_CODE:
        return LockNotAvailable(_first_line(error))
    if code in SCHEMA_MISSING_CODES:
        return SchemaMissing(f"PostgreSQL says: {_first_line(error)}", url)
    if is_connection_lost(code):
        return StoreUnclear(f"PostgreSQL ended the connection ({code}): {_first_line(error)}")
    if code == READ_ONLY_CODE:
        return StoreUnavailable(
            "PostgreSQL is read-only here (a standby?); nothing was done, and the next call connects anew: "
            "point the URL at the primary"
        )
    if code.startswith(("53", "54", "58")):
        return StoreUnavailable(f"PostgreSQL has no room or failed ({code}): {_first_line(error)}")
    return StoreError(f"PostgreSQL refused ({code}): {_first_line(error)}")


def is_demoted(error: StoreUnavailable) -> bool:
    """True if the server refused because it is read-only: a standby, or a primary that was replaced."""
    return getattr(error.__cause__, "sqlstate", None) == READ_ONLY_CODE
