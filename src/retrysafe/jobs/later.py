"""How long a delivery stays away when another worker is at its job."""

from __future__ import annotations

import random

from retrysafe.errors import InProgress

SHORTEST, LONGEST = 0.5, 5.0
"""Seconds. The lease may lapse much later than the job ends, and looking again costs little."""


def later(busy: InProgress) -> float:
    """Seconds until the next try, drawn at random so that several do not come back together."""
    return max(SHORTEST, min(busy.retry_after, LONGEST)) * random.uniform(0.5, 1.0)
