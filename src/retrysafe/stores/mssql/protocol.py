"""How a statement is said to SQL Server, whoever says it. No I/O here.

A text is one batch or several, parted by `GO` on a line of its own. The reply is what the last one says: its rows, and
none where it says nothing. An insert marked `or nothing` takes "that id is there already" (2601, 2627) for an answer:
nothing was inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from retrysafe.stores.base import Plan
from retrysafe.stores.mssql.dialect import CLOCK_DECLARATION
from retrysafe.stores.sql.dialect import Statement

Rows = Sequence[Sequence[Any]]

OR_NOTHING = "/* or nothing */"
DUPLICATE_CODES = frozenset({2601, 2627})
_MAX_CHAIN_DEPTH = 8

BEGIN = Statement("BEGIN TRANSACTION", {})
COMMIT = Statement("COMMIT TRANSACTION", {})
ROLLBACK = Statement("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", {})


@lru_cache(maxsize=1024)
def split_batches(sql: str) -> tuple[str, ...]:
    """What is sent, one after the other. The clock is read anew in each that asks for it."""
    parts = [part.strip() for part in f"\n{sql}\n".split("\nGO\n")]
    return tuple(f"{CLOCK_DECLARATION}\n{part}" if "@now" in part else part for part in parts)


def plan_batches(statement: Statement) -> Plan[str, Rows]:
    """Yields each batch and is sent its rows."""
    last: Rows = []
    for batch in split_batches(statement.sql):
        try:
            last = yield batch
        except Exception as error:
            if not is_allowed_duplicate(error, batch):
                raise
            last = []
    return last


def bind_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the driver must be given them.

    pymssql writes bytes as a text where they are ASCII without a zero: about one random token in 74,000, and no binary
    column takes that (257). A bytearray is written in hexadecimal whatever is in it, also if that is nothing.
    """
    return {name: bytearray(value) if isinstance(value, bytes) else value for name, value in values.items()}


def is_allowed_duplicate(error: BaseException, batch: str) -> bool:
    """Whether this is an `or nothing` that got nothing."""
    return OR_NOTHING in batch and error_number(error) in DUPLICATE_CODES


def error_number(error: BaseException) -> int | None:
    """The server's or DB-Lib's error number, wherever in the chain it stands. pymssql puts `(number, text)` or the
    number first in `args`."""
    at: BaseException | None = error
    for _ in range(_MAX_CHAIN_DEPTH):
        if at is None:
            return None
        if _is_from_driver(at) and at.args:
            first = at.args[0]
            found = first[0] if isinstance(first, tuple) and first else first
            if isinstance(found, int):
                return found
        at = at.__cause__
    return None


def _is_from_driver(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] == "pymssql" for base in type(error).__mro__)


def read_last_rows(cursor: Any) -> Rows:
    """The rows of the last batch's last result. Statements that say nothing are passed over by the driver."""
    found: Rows = []
    while True:
        if cursor.description:
            found = [tuple(row) for row in cursor.fetchall()]
        if not cursor.nextset():
            return found
