"""Errors of SQL Server and DB-Lib, read by number: the server refused the statement, or the connection broke."""

from __future__ import annotations

from retrysafe.core.texts import first_line
from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.sql.plans import LockNotAvailable
from retrysafe.stores.sql.retrying import ErrorFactories, RetryNow
from retrysafe.transactions.failures import ErrorClass
from retrysafe_mssql.protocol import error_number

RETRYABLE_CODES = frozenset({1205, 3960, 3961, 1204, 41302, 41305, 41325})
"""Nothing happened, and the same statement may succeed now: deadlock victim, snapshot conflict, no locks left."""

LOCK_TIMEOUT_CODES = frozenset({1222})
SCHEMA_MISSING_CODES = frozenset({207, 208, 2812})
"""No such column, table, procedure."""

NO_DATABASE_CODES = frozenset({911, 916, 4060, 18456, 18452})
READ_ONLY_CODES = frozenset({3906, 3908, 976, 978, 982, 983})
"""The database is read-only, or is a replica that accepts no connections."""

OUT_OF_RESOURCES_CODES = frozenset({701, 1101, 1105, 8645, 8651, 9002})
_DB_LIB_CODES = range(20000, 20200)
"""DB-Lib's own numbers: the connection broke (20003 time-out, 20004 read, 20006 write, 20047 dead)."""
CONNECTION_LOST_CODES = frozenset({233, 596, 6002, 6005, 10053, 10054, 10060, 10061, 17142, 17143})
"""The session was killed, the server is shutting down, or the network failed. The statement may have happened."""

_CONSTRAINT_CODES = frozenset({515, 547, 2601, 2627})
"""Not null, foreign key or check, duplicate."""


def translate_error(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours. LockNotAvailable and RetryNow stay inside the store."""
    if isinstance(error, RetrySafeError | LockNotAvailable | RetryNow):
        return error
    if isinstance(error, UnicodeError):
        return StoreError(
            f"a value of this operation cannot be stored in SQL Server: {_first_line(error)}; nothing was done"
        )
    number = error_number(error)
    if number is None:
        broke = isinstance(error, OSError | EOFError) or _is_driver_error(error)
        return StoreUnclear(f"the connection to SQL Server broke: {_first_line(error)}") if broke else error
    if batch and number in LOCK_TIMEOUT_CODES:
        return BatchRefused("a key of this batch is held by an open transaction; send the operations one by one")
    return _translate_reply(number, error, url)


def _translate_reply(number: int, error: Exception, url: str) -> Exception:
    if number in RETRYABLE_CODES:
        return RetryNow(_first_line(error))
    if number in LOCK_TIMEOUT_CODES:
        return LockNotAvailable(_first_line(error))
    if number in SCHEMA_MISSING_CODES:
        return SchemaMissing(f"SQL Server says ({number}): {_first_line(error)}", url)
    if is_connection_lost(number):
        return StoreUnclear(f"the connection to SQL Server broke ({number}): {_first_line(error)}")
    if number in READ_ONLY_CODES:
        return StoreUnavailable(
            f"SQL Server is read-only here ({number}: {_first_line(error)}; a secondary?); point the URL at the primary"
        )
    if number in OUT_OF_RESOURCES_CODES or number in NO_DATABASE_CODES:
        return StoreUnavailable(f"SQL Server has no room or is not ready ({number}): {_first_line(error)}")
    return StoreError(f"SQL Server refused ({number}): {_first_line(error)}")


def is_demoted(error: Exception) -> bool:
    """Whether the server is read-only: a former primary, or a secondary."""
    return error_number(error) in READ_ONLY_CODES


def is_connection_lost(number: int) -> bool:
    """Whether the connection broke."""
    return number in CONNECTION_LOST_CODES or number in _DB_LIB_CODES


def classify_number(number: int) -> ErrorClass:
    """What an error number means for a transaction of the user."""
    if number in RETRYABLE_CODES or number in LOCK_TIMEOUT_CODES:
        return ErrorClass.RETRYABLE
    if number in SCHEMA_MISSING_CODES:
        return ErrorClass.SCHEMA_MISSING
    if is_connection_lost(number):
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.CONSTRAINT if number in _CONSTRAINT_CODES else ErrorClass.REFUSED


def unreachable_error(error: Exception) -> StoreUnavailable:
    """No connection was opened, so nothing can have happened."""
    number = error_number(error)
    reason = f"{number}: {_first_line(error)}" if number else _first_line(error)
    kind = (
        StoreUnreachable if not number or is_connection_lost(number) else StoreUnavailable
    )  # the server may have refused
    return kind(f"no connection to SQL Server ({reason}); is it up, and are host, user and database right?")


def lock_timeout_error() -> StoreUnavailable:
    return StoreUnavailable(
        "the key's row is held by an open transaction for longer than LOCK_TIMEOUT; nothing was done: "
        "end that transaction, and send the operation again"
    )


def too_many_deadlocks_error(tries: int) -> StoreUnavailable:
    return StoreUnavailable(f"SQL Server chose this as the deadlock victim {tries} times in a row; try again")


ERROR_FACTORIES = ErrorFactories(lock_timeout_error, too_many_deadlocks_error, is_demoted)


def pool_exhausted_error(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection to SQL Server came free within {seconds:g} s; is it answering, is ?pool= large enough?"
    )


def store_closed_error() -> StoreUnavailable:
    return StoreUnavailable("this store was closed; open a new one")


def _is_driver_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] == "pymssql"


def _first_line(error: Exception) -> str:
    """The message's first line, without the number in front of it."""
    message = error.args[0] if error.args else ""
    if isinstance(message, tuple) and len(message) > 1:
        message = message[1]
    elif len(error.args) > 1:
        message = error.args[1]
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    return first_line(error, text)
