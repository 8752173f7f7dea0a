"""What a driver raised, read without importing any driver: ours and the user's errors alike.

SQLAlchemy keeps the driver's error in `orig`, Django in `__cause__`; psycopg and asyncpg carry `sqlstate`, psycopg2
`pgcode`, sqlite3 `sqlite_errorname`; MySQL's drivers put a number first in `args`. The first code along that chain is
the database's own word.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable
from retrysafe.stores.duckdb import errors as duckdb
from retrysafe.stores.mssql import errors as mssql
from retrysafe.stores.mssql import protocol as tds
from retrysafe.stores.mysql import errors as mysql
from retrysafe.stores.mysql.protocol import error_number


class ErrorClass(Enum):
    RETRYABLE = "again"
    """The database undid it because of others, and the same may work now: serialization failure, deadlock, lock."""
    CONNECTION_LOST = "lost"
    """The connection went: whether the last thing sent was carried out is not known."""
    SCHEMA_MISSING = "missing"
    """Tables are not there."""
    CONSTRAINT = "taken"
    """A constraint was violated."""
    REFUSED = "refused"
    """The database said no."""
    OTHER = "other"
    """Not the database's word at all."""


_RETRYABLE_CODES = frozenset({"40001", "40P01"})
_MISSING_CODES = frozenset({"42P01", "3F000", "42703"})
_SHUTDOWN_CODES = frozenset({"57P01", "57P02", "57P03", "57P05"})
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
        return ErrorClass.OTHER  # somebody has read it already, and it may come from another database
    told = next((each for each in walk_causes(error) if _is_pymongo_error(each)), None)
    if told is not None:
        return _classify_mongo(told)
    number = error_number(error)
    if number is not None:
        return _classify_mysql(number)
    number = tds.error_number(error)
    if number is not None:
        return _classify_mssql(number)
    code = find_error_code(error)
    if code is not None and code.startswith("DUCKDB"):
        return _classify_duckdb(code, error)
    if code is None:
        silent = any(isinstance(each, OSError) or _is_connection_error(each) for each in walk_causes(error))
        return ErrorClass.CONNECTION_LOST if silent else ErrorClass.OTHER
    if code.startswith("SQLITE"):
        return _classify_sqlite(code, error)
    if code in _RETRYABLE_CODES:
        return ErrorClass.RETRYABLE
    if code in _MISSING_CODES:
        return ErrorClass.SCHEMA_MISSING
    if code in _SHUTDOWN_CODES or code.startswith("08"):
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.CONSTRAINT if code.startswith("23") else ErrorClass.REFUSED


def undoes_transaction(error: BaseException) -> bool:
    """Whether the database undid the whole transaction with this, and whatever it could be recognised by. SQLite only
    says that it is busy, and MongoDB is asked outside of the transaction."""
    if classify_error(error) is not ErrorClass.RETRYABLE or any(map(_is_pymongo_error, walk_causes(error))):
        return False
    return not (find_error_code(error) or "").startswith("SQLITE")


def _is_connection_error(error: BaseException) -> bool:
    """A driver's own: message brokers and others have an OperationalError, too."""
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
    named = code.partition(" ")[2]
    if named == "TransactionException":
        return ErrorClass.RETRYABLE if any(map(duckdb.is_conflict, walk_causes(error))) else ErrorClass.REFUSED
    return _DUCKDB_CLASSES.get(named, ErrorClass.REFUSED)


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
    """By its labels first: they say what may be done about it."""
    has: Any = getattr(error, "has_error_label", None)
    if has is not None and has("UnknownTransactionCommitResult"):
        return ErrorClass.CONNECTION_LOST
    if has is not None and has("TransientTransactionError"):
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


_MSSQL_CONSTRAINT_CODES = frozenset({515, 547, 2601, 2627})
"""Not null, foreign key or check, duplicate."""


def _classify_mssql(number: int) -> ErrorClass:
    if number in mssql.RETRYABLE_CODES or number in mssql.LOCK_TIMEOUT_CODES:
        return ErrorClass.RETRYABLE
    if number in mssql.SCHEMA_MISSING_CODES:
        return ErrorClass.SCHEMA_MISSING
    if mssql.is_connection_lost(number):
        return ErrorClass.CONNECTION_LOST
    return ErrorClass.CONSTRAINT if number in _MSSQL_CONSTRAINT_CODES else ErrorClass.REFUSED


def find_error_code(error: BaseException) -> str | None:
    """The database's own code, wherever in the chain it stands."""
    number = error_number(error) or tds.error_number(error)
    if number is not None:
        return str(number)
    for each in walk_causes(error):
        if duckdb.error_kind(each) is not None:
            return f"DUCKDB {duckdb.error_kind(each)}"
        if _is_pymongo_error(each) and isinstance(getattr(each, "code", None), int):
            return f"MongoDB {each.code}"  # type: ignore[attr-defined]  # it has, in this case
        for name in ("sqlstate", "pgcode", "sqlite_errorname"):
            code = getattr(each, name, None)
            if isinstance(code, str) and code:
                return code
    return None


def walk_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was made from. Only what was raised *from* it: a mere context proves nothing."""
    at: BaseException | None = error
    for _ in range(_MAX_CHAIN_DEPTH):
        if at is None:
            return
        yield at
        orig = getattr(at, "orig", None)
        at = orig if isinstance(orig, BaseException) and orig is not at else at.__cause__


def translate_error(error: Exception) -> Exception:
    """What an error of one of our own statements means to the caller, before anything was committed."""
    if isinstance(error, RetrySafeError):
        return error
    kind, said = classify_error(error), _first_line(error)
    if kind is ErrorClass.OTHER:
        return error
    if kind is ErrorClass.CONNECTION_LOST:
        return StoreUnavailable(f"the connection broke before the commit, so nothing happened: {said}")
    if kind is ErrorClass.SCHEMA_MISSING:
        return SchemaMissing(f"the transaction's database has no retrysafe tables ({said})", "URL")
    if find_error_code(error) == "25P02":
        return StoreError(
            "an SQL error inside the transaction was caught and passed over, and PostgreSQL refuses everything after "
            "it; all was rolled back. Let the error out, or put the statement that may fail into a savepoint"
        )
    return StoreError(f"the database refused ({find_error_code(error)}): {said}")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
