"""Values that a function is called with and gives back: what JSON cannot say among them. For child.py and its tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo


@dataclass
class Money:
    cents: int
    currency: str = "usd"


class Colour(Enum):
    RED = 1
    BLUE = 2


VALUES: dict[str, tuple[Any, Any]] = {
    "none": (None, False),
    "true": (True, 1),
    "zero": (0, 0.0),
    "empty": ("", []),
    "text": ("é\x00\u2028", "e\x00\u2028"),
    "large": (2**70, 2**70 + 1),
    "float": (1.5, 1.25),
    "infinite": (float("inf"), float("-inf")),
    "bytes": (b"\x00\xff", b"\x00"),
    "tuple": ((1, 2), [1, 2]),
    "set": ({1}, frozenset({1})),
    "mapping": ({"$x": {"$tuple": [1]}, 1: "a"}, {"$x": {"$tuple": [1]}, "1": "a"}),
    "decimal": (Decimal("1.50"), Decimal("1.5")),
    "date": (date(2026, 1, 2), "2026-01-02"),
    "moment": (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2, 3, 4, 5, 7, UTC)),
    "zone": (
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin")),
    ),
    "time": (time(1, 2, 3), time(1, 2, 4)),
    "duration": (timedelta(days=1, microseconds=7), timedelta(days=1)),
    "uuid": (UUID(int=7), UUID(int=8)),
    "dataclass": (Money(5), Money(5, "eur")),
    "enum": (Colour.RED, Colour.BLUE),
    "nested": ([{"a": (Decimal(1), {b"x"})}], [{"a": (Decimal(1), {b"y"})}]),
}

UNKEPT = ("dataclass", "enum")
"""Told apart as arguments, but only an annotation brings them back as results."""
