"""Classify what a driver raised, for our statements and for the user's alike. No driver is imported.

SQLAlchemy keeps the driver's error in `orig`, Django in `__cause__`. psycopg and asyncpg have `sqlstate`, psycopg2
`pgcode`, sqlite3 `sqlite_errorname`; MySQL's drivers put a number first in `args`. The first code along that chain
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from retrysafe.core.texts import first_line
from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable
from retrysafe.stores.duckdb import errors as duckdb
from retrysafe.stores.mysql import errors as mysql
from retrysafe.stores.mysql.protocol import error_number
from retrysafe.stores.sql import sqlstates


class ErrorClass(Enum):
    RETRYABLE = "again"
    """The database rolled it back because of another transaction, and the same may succeed now: a serialization
    failure, a deadlock; on MySQL and SQLite a lock timeout."""
    CONNECTION_LOST = "lost"
    """The connection was lost. Whether the last statement was carried out is unknown."""
    SCHEMA_MISSING = "missing"
    """A table, schema or column does not exist."""
    CONSTRAINT = "taken"
    """A constraint was violated."""
    REFUSED = "refused"
    """The database refused for another reason."""
    OTHER = "other"
    """Not an error of a database."""


_CONNECTION_ERROR_NAMES = frozenset({"OperationalError", "InterfaceError", "InternalClientError"})
_DRIVER_MODULES = frozenset(
    {
        *("psycopg", "psycopg2", "psycopg_pool", "asyncpg", "pg8000", "sqlite3", "aiosqlite", "sqlalchemy", "django"),
        *("pymysql", "asyncmy", "aiomysql", "MySQLdb", "mysql", "pymssql", "pyodbc", "duckdb", "_duckdb"),
    }
)
_MAX_CHAIN_DEPTH = 8


def classify_error(error: BaseException) -> ErrorClass:
    if isinstance(error, RetrySafeError):
        return ErrorClass.OTHER  # it was classified before, and may come from another database
    of_mongo = next((each for each in walk_causes(error) if _is_pymongo_error(each)), None)
    if of_mongo is not None:
        return _classify_mongo(of_mongo)
    number = error_number(error)
    if number is not None:
        return _classify_mysql(number)
    for find_number, classify_number in _error_numbers:
        number = find_number(error)
        if number is not None:
            return classify_number(number)
    code = find_error_code(error)
    if code is not None and code.startswith("DUCKDB"):
        return _classify_duckdb(code, error)
    if code is None:
        lost = any(isinstance(each, OSError) or _is_connection_error(each) for each in walk_causes(error))
        return ErrorClass.CONNECTION_LOST if lost else ErrorClass.OTHER
    if code.startswith("SQLITE"):
        return _classify_sqlite(code, error)
    if code in sqlstates.SERIALIZATION_CODES:
        return ErrorClass.RETRYABLE
    if code in sqlstates.SCHEMA_MISSING_CODES:
        return ErrorClass.SCHEMA_MISSING
    if sqlstates.is_connection_lost(code):
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.CONSTRAINT if sqlstates.is_constraint_violation(code) else ErrorClass.REFUSED


def undoes_transaction(error: BaseException) -> bool:
    """Whether the database has rolled back the whole transaction with this error, and its savepoints with it. SQLite
    has not: it only reports that it is busy. On MongoDB it does not matter: the question is asked outside of the
    transaction."""
    if classify_error(error) is not ErrorClass.RETRYABLE or any(map(_is_pymongo_error, walk_causes(error))):
        return False
    return not (find_error_code(error) or "").startswith("SQLITE")


def _is_connection_error(error: BaseException) -> bool:
    """Whether it is a connection error of a database driver. Message brokers and others have an OperationalError, too,
    so the module of the class counts."""
    return type(error).__name__ in _CONNECTION_ERROR_NAMES and any(
        base.__module__.partition(".")[0] in _DRIVER_MODULES for base in type(error).__mro__
    )


def _classify_sqlite(code: str, error: BaseException) -> ErrorClass:
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return ErrorClass.RETRYABLE
    if code.startswith("SQLITE_CONSTRAINT"):
        return ErrorClass.CONSTRAINT
    if code.startswith("SQLITE_IOERR"):
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.SCHEMA_MISSING if "no such table" in str(error) else ErrorClass.REFUSED


def _classify_duckdb(code: str, error: BaseException) -> ErrorClass:
    class_name = code.partition(" ")[2]
    if class_name == "TransactionException":
        return ErrorClass.RETRYABLE if any(map(duckdb.is_conflict, walk_causes(error))) else ErrorClass.REFUSED
    return _DUCKDB_CLASSES.get(class_name, ErrorClass.REFUSED)


_DUCKDB_CLASSES = {
    "ConstraintException": ErrorClass.CONSTRAINT,
    "CatalogException": ErrorClass.SCHEMA_MISSING,
    "IOException": ErrorClass.CONNECTION_LOST,
    "FatalException": ErrorClass.CONNECTION_LOST,
    "InternalException": ErrorClass.CONNECTION_LOST,
    "ConnectionException": ErrorClass.CONNECTION_LOST,
}


def _is_pymongo_error(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] == "pymongo" for base in type(error).__mro__)


def _classify_mongo(error: BaseException) -> ErrorClass:
    """By the error's labels first: they say what may be done about it."""
    has_label: Any = getattr(error, "has_error_label", None)
    if has_label is not None and has_label("UnknownTransactionCommitResult"):
        return ErrorClass.CONNECTION_LOST
    if has_label is not None and has_label("TransientTransactionError"):
        return ErrorClass.RETRYABLE
    names = {base.__name__ for base in type(error).__mro__}
    if "ConnectionFailure" in names:
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.CONSTRAINT if "DuplicateKeyError" in names else ErrorClass.REFUSED


_MYSQL_CONSTRAINT_CODES = frozenset({1048, 1062, 1169, 1216, 1217, 1451, 1452, 1557, 1586, 3819, 4025})
"""Duplicate, foreign key, not null, check."""


def _classify_mysql(number: int) -> ErrorClass:
    if number in mysql.RETRYABLE_CODES or number in mysql.LOCK_TIMEOUT_CODES:
        return ErrorClass.RETRYABLE
    if number in mysql.SCHEMA_MISSING_CODES:
        return ErrorClass.SCHEMA_MISSING
    if mysql.is_connection_lost(number):
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.CONSTRAINT if number in _MYSQL_CONSTRAINT_CODES else ErrorClass.REFUSED


FindNumber = Callable[[BaseException], int | None]
"""Reads a driver's own error number; None for errors of other drivers."""

_error_numbers: list[tuple[FindNumber, Callable[[int], ErrorClass]]] = []


def register_error_numbers(find_number: FindNumber, classify_number: Callable[[int], ErrorClass]) -> None:
    """Teach `classify_error` the errors of one more driver. A distribution of ours calls it when it is imported
    (distributions/retrysafe-mssql)."""
    _error_numbers.append((find_number, classify_number))


def find_error_code(error: BaseException) -> str | None:
    """The database's own code: the first one in the chain of causes."""
    for find_number in (error_number, *(find for find, _ in _error_numbers)):
        number = find_number(error)
        if number is not None:
            return str(number)
    for each in walk_causes(error):
        if duckdb.error_kind(each) is not None:
            return f"DUCKDB {duckdb.error_kind(each)}"
        if _is_pymongo_error(each) and isinstance(getattr(each, "code", None), int):
            return f"MongoDB {each.code}"  # type: ignore[attr-defined]  # checked in the line before
        for name in ("sqlstate", "pgcode", "sqlite_errorname"):
            code = getattr(each, name, None)
            if isinstance(code, str) and code:
                return code
    return None


def walk_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes. `__context__` is left out: an error that was being handled need not be the cause."""
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN_DEPTH):
        if current is None:
            return
        yield current
        orig = getattr(current, "orig", None)
        current = orig if isinstance(orig, BaseException) and orig is not current else current.__cause__


def translate_error(error: Exception) -> Exception:
    """The error for the caller after one of our own statements failed, before anything was committed."""
    if isinstance(error, RetrySafeError):
        return error
    kind, message = classify_error(error), first_line(error)
    if kind is ErrorClass.OTHER:
        return error
    if kind is ErrorClass.CONNECTION_LOST:
        return StoreUnavailable(f"the connection broke before the commit, so nothing happened: {message}")
    if kind is ErrorClass.SCHEMA_MISSING:
        return SchemaMissing(f"the transaction's database has no retrysafe tables ({message})", "URL")
    if find_error_code(error) == sqlstates.IN_FAILED_TRANSACTION_CODE:
        return StoreError(
            "an SQL error inside the transaction was caught and passed over, and PostgreSQL refuses everything after "
            "it; all was rolled back. Let the error out, or put the statement that may fail into a savepoint"
        )
    return StoreError(f"the database refused ({find_error_code(error)}): {message}")
