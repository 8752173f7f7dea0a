"""How long a delivery stays away when another worker is at its job."""

from __future__ import annotations

import random

from retrysafe.errors import InProgress

MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 5.0
"""Seconds. The lease may lapse much later than the job ends, and looking again costs little."""


def compute_busy_delay(busy: InProgress) -> float:
    """Seconds until the next try, drawn at random so that several do not come back together."""
    return max(MIN_DELAY_SECONDS, min(busy.retry_after, MAX_DELAY_SECONDS)) * random.uniform(0.5, 1.0)
