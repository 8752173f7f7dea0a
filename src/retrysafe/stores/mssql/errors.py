"""What SQL Server and DB-Lib say, read by number: did the server say no, or did it go silent?"""

from __future__ import annotations

from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.mssql.protocol import error_number
from retrysafe.stores.sql.plans import LockNotAvailable
from retrysafe.stores.sql.retrying import ErrorFactories, RetryNow

RETRYABLE_CODES = frozenset({1205, 3960, 3961, 1204, 41302, 41305, 41325})
"""Nothing happened, and the same thing may work now: deadlock victim, snapshot conflict, no locks left."""

LOCK_TIMEOUT_CODES = frozenset({1222})
SCHEMA_MISSING_CODES = frozenset({207, 208, 2812})
"""No such column, table, procedure."""

NO_DATABASE_CODES = frozenset({911, 916, 4060, 18456, 18452})
READ_ONLY_CODES = frozenset({3906, 3908, 976, 978, 982, 983})
"""Read-only, or a replica that takes no connections."""

OUT_OF_RESOURCES_CODES = frozenset({701, 1101, 1105, 8645, 8651, 9002})
_DB_LIB_CODES = range(20000, 20200)
"""DB-Lib's own numbers: the conversation broke (20003 time-out, 20004 read, 20006 write, 20047 dead)."""
CONNECTION_LOST_CODES = frozenset({233, 596, 6002, 6005, 10053, 10054, 10060, 10061, 17142, 17143})
"""The session was killed, the server is shutting down, the network failed: it may have happened."""


def translate_error(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours; Held and Again stay inside the store."""
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
    """Whether the server said that it is read-only: a primary that another has taken over from, or a secondary."""
    return error_number(error) in READ_ONLY_CODES


def is_connection_lost(number: int) -> bool:
    """Whether the conversation broke."""
    return number in CONNECTION_LOST_CODES or number in _DB_LIB_CODES


def unreachable_error(error: Exception) -> StoreUnavailable:
    """No connection was made, so nothing can have happened."""
    number = error_number(error)
    told = f"{number}: {_first_line(error)}" if number else _first_line(error)
    kind = StoreUnreachable if not number or is_connection_lost(number) else StoreUnavailable  # it may have said no
    return kind(f"no connection to SQL Server ({told}); is it up, and are host, user and database right?")


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
    said = error.args[0] if error.args else ""
    if isinstance(said, tuple) and len(said) > 1:
        said = said[1]
    elif len(error.args) > 1:
        said = error.args[1]
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
