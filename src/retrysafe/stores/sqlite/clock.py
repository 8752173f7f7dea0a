"""The time of a statement, asked for by the statement itself.

A statement that writes takes the file's lock before it does anything else, and may wait for it. A time that is bound to
it was read before that wait: the lease of a claim that waited for two seconds would be two seconds short, or over. So
our statements call this function, and SQLite calls it when the lock is held.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any

FUNCTION_NAME = "retrysafe_now"


def read_host_clock() -> int:
    """The host's clock, in microseconds."""
    return time.time_ns() // 1000


class StatementClock:
    """The first call of a statement reads the clock; all that follow are told the same."""

    def __init__(self) -> None:
        self._read: int | None = None

    def __call__(self) -> int:
        if self._read is None:
            self._read = read_host_clock()
        return self._read

    def reset(self) -> None:
        """Before each statement."""
        self._read = None


class ClockConnection(sqlite3.Connection):
    """A connection whose statements can ask for the time. Used by one thread at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moment = StatementClock()
        self.create_function(FUNCTION_NAME, 0, self.moment)
