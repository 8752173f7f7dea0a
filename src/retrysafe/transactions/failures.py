"""What a driver raised, read without importing any driver: ours and the user's errors alike.

SQLAlchemy keeps the driver's error in `orig`, Django in `__cause__`; psycopg and asyncpg carry `sqlstate`, psycopg2
`pgcode`, sqlite3 `sqlite_errorname`; MySQL's drivers put a number first in `args`. The first code along that chain is
the database's own word.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable
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
    number = number_of(error)
    if number is not None:
        return _mysql(number)
    code = code_of(error)
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


def code_of(error: BaseException) -> str | None:
    """The database's own code, wherever in the chain it stands."""
    number = number_of(error)
    if number is not None:
        return str(number)
    for each in chain(error):
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
