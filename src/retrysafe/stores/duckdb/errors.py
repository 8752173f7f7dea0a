"""Errors of DuckDB, recognised by the names of their classes. Importing this file needs no driver."""

from __future__ import annotations

import re

from retrysafe.core.texts import first_line as _first_line
from retrysafe.errors import SchemaMissing, StoreError, StoreUnavailable, StoreUnclear

_DRIVER_MODULES = frozenset({"duckdb", "_duckdb"})
_LOCKED_MESSAGE = re.compile(r"Could not set lock on file.*?(?:\(PID (\d+)\)|$)", re.DOTALL)

ONE_PROCESS_HINT = (
    "DuckDB lets one process use a file. Close it there, or keep the records in a store made for several "
    "processes: sqlite:///app.db on one machine, postgresql:// or mysql:// on many"
)


class Conflict(Exception):
    """Another transaction changed the same row or inserted the same id. Nothing happened, and the same statement may
    succeed now."""


def error_kind(error: BaseException) -> str | None:
    """The name of the DuckDB exception class; None for an exception of another module."""
    found = type(error)
    return found.__name__ if found.__module__.partition(".")[0] in _DRIVER_MODULES else None


def is_conflict(error: BaseException) -> bool:
    """Whether DuckDB rolled back because of another transaction. Other TransactionExceptions are misuse (a nested
    transaction, or one that was aborted already)."""
    text = str(error)
    return error_kind(error) == "TransactionException" and (
        "Conflict on" in text or "write-write" in text or _is_failed_commit(text)
    )


def is_duplicate(error: BaseException) -> bool:
    """Whether the id is in the index while its row is not visible: the row was committed after this transaction began.
    ON CONFLICT does not cover that case."""
    return error_kind(error) == "ConstraintException" and "Duplicate key" in str(error)


def _is_failed_commit(text: str) -> bool:
    return "Failed to commit" in text and "constraint violation" in text


def translate_error(error: Exception, path: str) -> Exception:
    """The error as one of ours. Conflict stays inside the store."""
    kind = error_kind(error)
    if kind is None:
        return _unstorable_value_error(error, path) if isinstance(error, UnicodeError) else error
    if is_conflict(error) or is_duplicate(error):
        return Conflict(_first_line(error))
    if kind in ("FatalException", "InternalException"):
        return StoreUnclear(f"{path}: DuckDB gave up ({_first_line(error)}); it is opened again when it is used next")
    if kind in ("IOException", "HTTPException"):
        return StoreUnclear(f"{path}: the disk failed ({_first_line(error)}); look at the file system")
    if kind == "CatalogException":
        return SchemaMissing(f"{path} has no retrysafe tables ({_first_line(error)})", f"duckdb:///{path}")
    if kind == "ConnectionException":
        return StoreUnavailable(f"{path}: {_first_line(error)}; open a new store")
    if kind == "OutOfMemoryException":
        return StoreUnavailable(
            f"{path}: DuckDB has no memory left ({_first_line(error)}); raise memory_limit, or retry"
        )
    if "surrogate" in str(error):
        return _unstorable_value_error(error, path)
    return StoreError(f"{path}: {kind}: {_first_line(error)}")


def open_error(error: Exception, path: str) -> StoreUnavailable:
    """The file cannot be opened, so nothing can have happened."""
    locked = _LOCKED_MESSAGE.search(str(error))
    if locked is not None:
        who = f"process {locked.group(1)}" if locked.group(1) else "another process"
        return StoreUnavailable(f"{path}: is open in {who}. {ONE_PROCESS_HINT}")
    if "different configuration" in str(error):
        return StoreUnavailable(
            f"{path}: is open in this process with settings of its own, and DuckDB wants the same everywhere; "
            "give the store that connection: RetrySafe(DuckdbStore(connection))"
        )
    if "not a valid DuckDB database" in str(error):
        return StoreUnavailable(f"{path}: is not a DuckDB database; point the URL at another file")
    return StoreUnavailable(
        f"{path}: cannot be opened ({_first_line(error)}); check that it is a file, and writable with its folder"
    )


def forked_error(path: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path}: was open when this process was forked from the one that has it. {ONE_PROCESS_HINT}; or open it only "
        "after the fork, in one of the processes"
    )


def lock_timeout_error(path: str, seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path}: an open transaction has changed the same record and did not end within {seconds:g} s; nothing was "
        "done: end that transaction, and send the operation again"
    )


def _unstorable_value_error(error: Exception, path: str) -> StoreError:
    return StoreError(f"{path}: a value of this operation cannot be stored: {_first_line(error)}; nothing was done")
