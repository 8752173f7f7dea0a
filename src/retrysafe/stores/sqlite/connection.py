"""The store's own connections, and the two SQL functions that they bring: the clock of a statement, and a whole row.

The clock. A statement that writes first takes the lock of the file, and may wait for it. A time that is bound as a
parameter was read before that wait: after two seconds of waiting, a claim's lease would be two seconds too short, or
over already. So our statements call an SQL function, and SQLite calls it when the lock is held.

The row. For each SELECT, sqlite3 describes every column of the result anew, and SQLite locks the connection for every
value that is fetched. With the 28 columns of a record, that costs more than finding the row. The arguments of a
function have neither. So one column is selected: a function that takes the whole row as its arguments, and keeps it.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any, NamedTuple

from retrysafe.stores.sql import rows

CLOCK_FUNCTION = "retrysafe_now"
ROW_FUNCTION = "retrysafe_row"


def read_host_clock() -> int:
    """The host's clock, in microseconds."""
    return time.time_ns() // 1000


class StatementClock:
    """The first call in a statement reads the clock. Later calls return the same time."""

    def __init__(self) -> None:
        self._read: int | None = None

    def __call__(self) -> int:
        if self._read is None:
            self._read = read_host_clock()
        return self._read

    def reset(self) -> None:
        """Forget the time. Called before each statement."""
        self._read = None


class RowQuery(NamedTuple):
    """The statements that read the row of an id."""

    kept: str
    """It gives the row to our function."""
    plain: str
    """The same without our function, for the driver's own words about a value that it cannot read."""


def build_row_query(table: str) -> RowQuery:
    columns, where = ", ".join(rows.COLUMNS), f"FROM {table} WHERE id = ?"
    return RowQuery(f"SELECT {ROW_FUNCTION}({columns}) {where}", f"SELECT {columns} {where}")


class RowKeeper:
    """The function that takes a row. An object of its own: SQLite holds it, and it must not hold the connection."""

    def __init__(self) -> None:
        self.row: tuple[Any, ...] | None = None

    def __call__(self, *values: Any) -> None:
        self.row = values


class OwnConnection(sqlite3.Connection):
    """A connection with our SQL functions. One thread uses it at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moment = StatementClock()
        self.create_function(CLOCK_FUNCTION, 0, self.moment)
        self._keeper = RowKeeper()
        self.create_function(ROW_FUNCTION, len(rows.COLUMNS), self._keeper)

    def read_row(self, query: RowQuery, record_id: bytes) -> tuple[Any, ...] | None:
        """The row of a record, with its columns in the order of COLUMNS; or None."""
        keeper, key = self._keeper, (bytearray(record_id),)  # usual.py says why not bytes
        try:
            found = self.execute(query.kept, key).fetchone()
            return None if found is None else keeper.row
        except sqlite3.OperationalError as error:
            if "user-defined function" in str(error):  # it never raises: one of its arguments could not be read
                self.execute(query.plain, key).fetchone()
            raise
        finally:
            keeper.row = None
