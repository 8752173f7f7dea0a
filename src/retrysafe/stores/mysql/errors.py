"""Translation of the drivers' exceptions: did the server refuse the operation, or is its outcome unclear? Errors are
recognised by number, so this module imports no driver: PyMySQL and asyncmy use the same numbers.
"""

from __future__ import annotations

from retrysafe.core.texts import first_line
from retrysafe.errors import (
    RetrySafeError,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
    UsageError,
)
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.mysql.protocol import error_number
from retrysafe.stores.sql.plans import ErrorFactories, LockNotAvailable, RetryNow

RETRYABLE_CODES = frozenset({1213, 1020, 1614, 3101})
"""Deadlock, row changed since it was read, rolled back by the server: nothing happened, and a retry may succeed."""

LOCK_TIMEOUT_CODES = frozenset({1205, 3572})
DUPLICATE_ROW_CODE = 1062
SCHEMA_MISSING_CODES = frozenset({1146, 1054, 1049})
"""No such table, column, database."""

CONNECTION_LOST_CODES = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927, 3169, 4031})
"""Shutdown, killed connection, network failure, error at the commit: the operation may have happened."""

READ_ONLY_CODES = frozenset({1290, 1792, 1836, 4090})
OUT_OF_RESOURCES_CODES = frozenset({1021, 1037, 1038, 1040, 1041, 1114, 1135, 1203, 1226, 3675})
_CLIENT_CODES = range(2000, 3000)
"""The drivers' own numbers: the connection broke (2006, 2013, 2014, 2055)."""


def translate_error(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours. LockNotAvailable and RetryNow are handled inside the store.

    In a batch, one locked row fails the whole transaction, so it is no reply to a single claim.
    """
    if isinstance(error, RetrySafeError | LockNotAvailable | RetryNow):
        return error
    if isinstance(error, UnicodeError):
        return unstorable_value_error(error)
    number = error_number(error)
    if number is None:
        broke = isinstance(error, OSError | EOFError) or _is_driver_error(error)
        return StoreUnclear(f"the connection to MySQL broke: {_first_line(error)}") if broke else error
    if batch and number in LOCK_TIMEOUT_CODES:
        return BatchRefused("a key of this batch is held by an open transaction; send the operations one by one")
    if batch and number == DUPLICATE_ROW_CODE:
        return RetryNow(_first_line(error))  # another transaction has just inserted one of the keys
    return _translate_reply(number, error, url)


def _translate_reply(number: int, error: Exception, url: str) -> Exception:
    """Translate an error that has a number: the server answered, or the driver knows the cause."""
    if number in RETRYABLE_CODES:
        return RetryNow(_first_line(error))
    if number in LOCK_TIMEOUT_CODES:
        return LockNotAvailable(_first_line(error))
    if number in SCHEMA_MISSING_CODES:
        return SchemaMissing(f"MySQL says: {_first_line(error)}", url)
    if is_connection_lost(number):
        return StoreUnclear(f"the connection to MySQL broke ({number}): {_first_line(error)}")
    if number in READ_ONLY_CODES:
        return StoreUnavailable(
            f"MySQL is read-only here ({number}; a replica?); nothing was done, and the next call connects anew: "
            "point the URL at the source"
        )
    if number in OUT_OF_RESOURCES_CODES:
        return StoreUnavailable(f"MySQL has no room or failed ({number}): {_first_line(error)}")
    if number == 1153:
        fix = "raise max_allowed_packet, or lower max_answer in the policy"
        return StoreError(f"MySQL refused ({number}): {_first_line(error)}; nothing was done: {fix}")
    return StoreError(f"MySQL refused ({number}): {_first_line(error)}")


def is_demoted(error: Exception) -> bool:
    """True if the server refused because it is read-only: a replica, or a primary that was replaced."""
    return error_number(error) in READ_ONLY_CODES


def is_connection_lost(number: int) -> bool:
    """True if the connection broke. 0: the driver's connection was closed already."""
    return number in CONNECTION_LOST_CODES or number in _CLIENT_CODES or number == 0


def unreachable_error(error: Exception) -> StoreUnavailable:
    """For a failure to connect: nothing was sent."""
    number = error_number(error)
    cause = f"{number}: {_first_line(error)}" if number else _first_line(error)
    kind = (
        StoreUnreachable if not number or is_connection_lost(number) else StoreUnavailable
    )  # the server may have refused
    return kind(f"no connection to MySQL ({cause}); is it up, and are host, user and database right?")


def settings_swallowed_error(driver: str) -> UsageError:
    """For a user's function that drops our settings: the server would refuse packets, and not report matched rows."""
    return UsageError(
        "the function that connects to MySQL must hand on the settings it is given: "
        f"def connect(**settings): return {driver}.connect(host=…, **settings)"
    )


def unstorable_value_error(error: Exception) -> StoreError:
    """For a value that the driver cannot encode (half a surrogate pair): nothing was sent."""
    return StoreError(f"a value of this operation cannot be stored in MySQL: {_first_line(error)}; nothing was done")


def lock_timeout_error() -> StoreUnavailable:
    """For a lock timeout that no plan handles: only a claim may be answered with Busy."""
    return StoreUnavailable(
        "the key's row is held by an open transaction for longer than innodb_lock_wait_timeout; nothing was done: "
        "end that transaction, and send the operation again"
    )


def too_many_deadlocks_error(tries: int) -> StoreUnavailable:
    return StoreUnavailable(f"MySQL answered {tries} deadlocks in a row; try again")


ERROR_FACTORIES = ErrorFactories(lock_timeout_error, too_many_deadlocks_error, is_demoted)


def pool_exhausted_error(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection to MySQL came free within {seconds:g} s; is it answering, is ?pool= large enough?"
    )


def store_closed_error() -> StoreUnavailable:
    return StoreUnavailable("this store was closed; open a new one")


def _is_driver_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pymysql", "asyncmy")


def _first_line(error: Exception) -> str:
    """The first line of the message, without the error number."""
    return first_line(error, str(error.args[1]) if len(error.args) > 1 else None)
