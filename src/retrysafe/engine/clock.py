"""The clock by which a process counts its own leases. A file of its own, because all that count leases import it.

The clock goes on while the machine is suspended. `time.monotonic` stands still then on Linux and macOS, and an owner
that was suspended would trust a lease that the store has granted to another attempt since (I33).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial


def _pick_clock() -> Callable[[], float]:
    name = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}.get(sys.platform, "")
    number = getattr(time, name, None)
    if number is None:  # Windows counts suspended time in `monotonic`
        return time.monotonic
    return partial(time.clock_gettime, number)


clock: Callable[[], float] = _pick_clock()
"""Seconds since an arbitrary start."""

CLOSE_SECONDS = 0.001
"""Clocks that differ by less than this are one clock: reading the two takes some time, too."""


def read_clock_lead() -> float:
    """How far `clock` is ahead of `time.monotonic`: 0 until the machine was suspended, on Linux. It may be anything on
    other systems, and only a suspension changes it. Of three readings the quickest counts, because a process may be
    interrupted between two clocks."""
    readings = []
    for _ in range(3):
        before = time.monotonic()
        now = clock()
        after = time.monotonic()
        readings.append((after - before, now - (before + after) / 2))
    _, lead = min(readings)
    return lead if abs(lead) >= CLOSE_SECONDS else 0.0
