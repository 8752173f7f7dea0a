"""Times are integers, microseconds since 1970, so that every store compares exactly the same numbers.

Floats would round differently in SQL, Lua and Python. Two of them that judge one lease differently would make two
owners. `Policy` and messages use seconds as floats; `duration_to_micros` is the only conversion.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

SECOND_MICROS = 1_000_000
HOUR_MICROS = 3600 * SECOND_MICROS
DAY_MICROS = 24 * HOUR_MICROS

# The largest integer that every store, Lua's doubles and JSON represent exactly: the year 2255.
FOREVER_MICROS = 2**53 - 1


@lru_cache(1_000)
def duration_to_micros(duration: float | timedelta) -> int:
    """A duration in whole microseconds; FOREVER_MICROS if it is infinite or too long. Cached: a program has a few
    durations, and converts them with each operation."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds >= FOREVER_MICROS / SECOND_MICROS:
        return FOREVER_MICROS
    return round(seconds * SECOND_MICROS)


def add_micros(moment: int, duration: int) -> int:
    """`moment + duration`, at most FOREVER_MICROS."""
    return min(moment + duration, FOREVER_MICROS)


def format_time(moment: int) -> str:
    """A moment for people to read: `2026-11-15T12:00:03Z`, or `never`."""
    if moment >= FOREVER_MICROS:
        return "never"
    return datetime.fromtimestamp(moment / SECOND_MICROS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_age(micros: int) -> str:
    """`3 s`, `12 min`, `5 h`, `9 d`."""
    seconds = max(micros, 0) // SECOND_MICROS
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def age_seconds(moment: int, now: int) -> float | None:
    """The age of a moment in seconds; None if there is none."""
    return round(max(now - moment, 0) / SECOND_MICROS, 3) if moment else None
