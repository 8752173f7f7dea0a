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
