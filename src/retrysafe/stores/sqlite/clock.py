"""The clock of a statement: an SQL function that reads the host's clock while the statement runs.

A statement that writes first takes the lock of the file, and may wait for it. A time that is bound as a parameter was
read before that wait: after two seconds of waiting, a claim's lease would be two seconds too short, or over already. So
our statements call an SQL function, and SQLite calls it when the lock is held.
"""

from __future__ import annotations

import time

FUNCTION_NAME = "retrysafe_now"


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
