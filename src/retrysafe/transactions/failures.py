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
from retrysafe.stores.mssql import talking as tds
from retrysafe.stores.mysql import errors as mysql
from retrysafe.stores.mysql.talking import number_of


class Trouble(Enum):
    AGAIN = "again"
    """The database undid it because of others, and the same may work now: serialization failure, deadlock, lock."""
    LOST = "lost"
    """The connection went: whether the last thing sent was carried out is not known."""
    MISSING = "missing"
    """Tables are not there."""
    TAKEN = "taken"
    """A constraint was violated."""
    REFUSED = "refused"
    """The database said no."""
    OTHER = "other"
    """Not the database's word at all."""


_AGAIN = frozenset({"40001", "40P01"})
_MISSING = frozenset({"42P01", "3F000", "42703"})
_SHUTDOWN = frozenset({"57P01", "57P02", "57P03", "57P05"})
_SILENT = frozenset({"OperationalError", "InterfaceError", "InternalClientError"})
_DEPTH = 8


def trouble(error: BaseException) -> Trouble:
    if isinstance(error, RetrySafeError):
        return Trouble.OTHER  # somebody has read it already, and it may come from another database
    told = next((each for each in chain(error) if _of_pymongo(each)), None)
    if told is not None:
        return _mongo(told)
    number = number_of(error)
    if number is not None:
        return _mysql(number)
    number = tds.number_of(error)
    if number is not None:
        return _mssql(number)
    code = code_of(error)
    if code is not None and code.startswith("DUCKDB"):
        return _duckdb(code, error)
    if code is None:
        silent = any(isinstance(each, OSError) or type(each).__name__ in _SILENT for each in chain(error))
        return Trouble.LOST if silent else Trouble.OTHER
    if code.startswith("SQLITE"):
        return _sqlite(code, error)
    if code in _AGAIN:
        return Trouble.AGAIN
    if code in _MISSING:
        return Trouble.MISSING
    if code in _SHUTDOWN or code.startswith("08"):
        return Trouble.LOST
    return Trouble.TAKEN if code.startswith("23") else Trouble.REFUSED


def _sqlite(code: str, error: BaseException) -> Trouble:
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Trouble.AGAIN
    if code.startswith("SQLITE_CONSTRAINT"):
        return Trouble.TAKEN
    if code.startswith("SQLITE_IOERR"):
        return Trouble.LOST
    return Trouble.MISSING if "no such table" in str(error) else Trouble.REFUSED


def _duckdb(code: str, error: BaseException) -> Trouble:
    named = code.partition(" ")[2]
    if named == "TransactionException":
        return Trouble.AGAIN if any(map(duckdb.conflicted, chain(error))) else Trouble.REFUSED
    return _DUCKDB.get(named, Trouble.REFUSED)


_DUCKDB = {
    "ConstraintException": Trouble.TAKEN,
    "CatalogException": Trouble.MISSING,
    "IOException": Trouble.LOST,
    "FatalException": Trouble.LOST,
    "InternalException": Trouble.LOST,
    "ConnectionException": Trouble.LOST,
}


def _of_pymongo(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] == "pymongo" for base in type(error).__mro__)


def _mongo(error: BaseException) -> Trouble:
    """By its labels first: they say what may be done about it."""
    has: Any = getattr(error, "has_error_label", None)
    if has is not None and has("UnknownTransactionCommitResult"):
        return Trouble.LOST
    if has is not None and has("TransientTransactionError"):
        return Trouble.AGAIN
    names = {base.__name__ for base in type(error).__mro__}
    if "ConnectionFailure" in names:
        return Trouble.LOST
    return Trouble.TAKEN if "DuplicateKeyError" in names else Trouble.REFUSED


_MYSQL_TAKEN = frozenset({1048, 1062, 1169, 1216, 1217, 1451, 1452, 1557, 1586, 3819, 4025})
"""Duplicate, foreign key, not null, check."""


def _mysql(number: int) -> Trouble:
    if number in mysql.AGAIN or number in mysql.LOCK_WAIT:
        return Trouble.AGAIN
    if number in mysql.MISSING:
        return Trouble.MISSING
    if mysql.silent(number):
        return Trouble.LOST
    return Trouble.TAKEN if number in _MYSQL_TAKEN else Trouble.REFUSED


_MSSQL_TAKEN = frozenset({515, 547, 2601, 2627})
"""Not null, foreign key or check, duplicate."""


def _mssql(number: int) -> Trouble:
    if number in mssql.AGAIN or number in mssql.LOCK_WAIT:
        return Trouble.AGAIN
    if number in mssql.MISSING:
        return Trouble.MISSING
    if mssql.silent(number):
        return Trouble.LOST
    return Trouble.TAKEN if number in _MSSQL_TAKEN else Trouble.REFUSED


def code_of(error: BaseException) -> str | None:
    """The database's own code, wherever in the chain it stands."""
    number = number_of(error) or tds.number_of(error)
    if number is not None:
        return str(number)
    for each in chain(error):
        if duckdb.kind_of(each) is not None:
            return f"DUCKDB {duckdb.kind_of(each)}"
        if _of_pymongo(each) and isinstance(getattr(each, "code", None), int):
            return f"MongoDB {each.code}"  # type: ignore[attr-defined]  # it has, in this case
        for name in ("sqlstate", "pgcode", "sqlite_errorname"):
            code = getattr(each, name, None)
            if isinstance(code, str) and code:
                return code
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was made from. Only what was raised *from* it: a mere context proves nothing."""
    at: BaseException | None = error
    for _ in range(_DEPTH):
        if at is None:
            return
        yield at
        orig = getattr(at, "orig", None)
        at = orig if isinstance(orig, BaseException) and orig is not at else at.__cause__


def meaning(error: Exception) -> Exception:
    """What an error of one of our own statements means to the caller, before anything was committed."""
    if isinstance(error, RetrySafeError):
        return error
    kind, said = trouble(error), _line(error)
    if kind is Trouble.OTHER:
        return error
    if kind is Trouble.LOST:
        return StoreUnavailable(f"the connection broke before the commit, so nothing happened: {said}")
    if kind is Trouble.MISSING:
        return SchemaMissing(f"the transaction's database has no retrysafe tables ({said})", "URL")
    if code_of(error) == "25P02":
        return StoreError(
            "an SQL error inside the transaction was caught and passed over, and PostgreSQL refuses everything after "
            "it; all was rolled back. Let the error out, or put the statement that may fail into a savepoint"
        )
    return StoreError(f"the database refused ({code_of(error)}): {said}")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
