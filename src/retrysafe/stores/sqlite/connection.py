"""The store's own connections. They bring two SQL functions: the clock of a statement (clock.py), and a whole row.

For each SELECT, sqlite3 describes every column of the result anew, and SQLite locks the connection for every value that
is fetched. With the 28 columns of a record, that costs twice as much as finding the row. The arguments of a function
have neither. So one column is selected: a function that takes the whole row as its arguments, and keeps it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from retrysafe.stores.sql import rows
from retrysafe.stores.sqlite import clock

ROW_FUNCTION_NAME = "retrysafe_row"


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
        self.moment = clock.StatementClock()
        self.create_function(clock.FUNCTION_NAME, 0, self.moment)
        self._keeper = RowKeeper()
        self.create_function(ROW_FUNCTION_NAME, len(rows.COLUMNS), self._keeper)

    def read_row(self, text: str, record_id: bytes) -> tuple[Any, ...] | None:
        """The row that a statement of `select_row` finds, with its columns in the order of COLUMNS; or None."""
        keeper = self._keeper
        try:
            found = self.execute(text, (bytearray(record_id),)).fetchone()  # usual.py says why not bytes
            return None if found is None else keeper.row
        finally:
            keeper.row = None


def select_row(table: str) -> str:
    return f"SELECT {ROW_FUNCTION_NAME}({', '.join(rows.COLUMNS)}) FROM {table} WHERE id = ?"
