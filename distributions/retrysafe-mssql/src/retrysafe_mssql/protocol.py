"""How a statement is sent to SQL Server. The store and the user's transactions share this file; it does no I/O.

A text is one batch or several, separated by `GO` on a line of its own. The reply is the rows of the last batch; a batch
without a result gives no rows. For an insert marked `or nothing`, a duplicate key (2601, 2627) is an expected result:
the id exists, and nothing was inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Statement
from retrysafe_mssql.dialect import CLOCK_DECLARATION

Rows = Sequence[Sequence[Any]]

OR_NOTHING = "/* or nothing */"
DUPLICATE_CODES = frozenset({2601, 2627})
_MAX_CHAIN_DEPTH = 8

BEGIN = Statement("BEGIN TRANSACTION", {})
COMMIT = Statement("COMMIT TRANSACTION", {})
ROLLBACK = Statement("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", {})


@lru_cache(maxsize=1024)
def split_batches(sql: str) -> tuple[str, ...]:
    """The batches of a text. Each batch that uses the time reads the clock."""
    parts = [part.strip() for part in f"\n{sql}\n".split("\nGO\n")]
    return tuple(f"{CLOCK_DECLARATION}\n{part}" if "@now" in part else part for part in parts)


def plan_batches(statement: Statement) -> Plan[str, Rows]:
    """Yield each batch, and be sent its rows."""
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
    """The values in the form that the driver needs.

    pymssql writes bytes as a text if they are ASCII without a zero: about one random token in 74,000. No binary column
    accepts that (257). It always writes a bytearray in hexadecimal, also an empty one.
    """
    return {name: bytearray(value) if isinstance(value, bytes) else value for name, value in values.items()}


def is_allowed_duplicate(error: BaseException, batch: str) -> bool:
    """Whether a batch marked `or nothing` failed with a duplicate key: the row exists, which is an expected result."""
    return OR_NOTHING in batch and error_number(error) in DUPLICATE_CODES


def error_number(error: BaseException) -> int | None:
    """The error number of the server or of DB-Lib, from anywhere in the chain of causes. pymssql puts `(number, text)`
    or the number first in `args`."""
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
    """The rows of the batch's last result. The driver skips statements without a result."""
    found: Rows = []
    while True:
        if cursor.description:
            found = [tuple(row) for row in cursor.fetchall()]
        if not cursor.nextset():
            return found
