"""Time is data: integer microseconds since 1970, so that every store compares exactly the same numbers.

Floats would round differently in SQL, Lua and Python, and a lease judged one tick apart by two of them
is two owners. People and `Policy` speak float seconds; `micros` is the only bridge.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND_MICROS = 1_000_000
HOUR_MICROS = 3600 * SECOND_MICROS
DAY_MICROS = 24 * HOUR_MICROS

# The largest number that every store, Lua's doubles and JSON hold exactly: in the year 2255.
FOREVER_MICROS = 2**53 - 1


@lru_cache(1_000)
def duration_to_micros(duration: float | timedelta) -> int:
    """A duration in whole microseconds; infinite (or longer than we can count) is FOREVER. Remembered: a program has a
    few durations, and asks for them with each operation."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds >= FOREVER_MICROS / SECOND_MICROS:
        return FOREVER_MICROS
    return round(seconds * SECOND_MICROS)


def add_micros(moment: int, duration: int) -> int:
    """`moment + duration`, never beyond FOREVER."""
    return min(moment + duration, FOREVER_MICROS)


def format_time(moment: int) -> str:
    """How a moment is shown to people: `2026-11-15T12:00:03Z`, or `never`."""
    if moment >= FOREVER_MICROS:
        return "never"
    return datetime.fromtimestamp(moment / SECOND_MICROS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
