"""How a job is to be delivered: later, to another queue, before others. What a queue has is passed on to it; what it
has not is refused before anything is claimed, because a job that is to run in an hour must not run now.

It is no part of what the job is: the same key with another countdown is the same job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrysafe.errors import UsageError


class DeliveryOptions(NamedTuple):
    """None: as the queue does it by itself."""

    countdown: float | None = None
    """Seconds until it may begin."""
    queue: str | None = None
    priority: int | None = None
    """What it means, and which end is up, is the queue's."""

    def given_options(self) -> dict[str, Any]:
        """What was asked for."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def check_delivery(asked: DeliveryOptions, queue: str, cannot: Mapping[str, str]) -> DeliveryOptions:
    """`unsupported_options`: what this queue has not, each with the reason."""
    countdown, name, priority = asked
    if countdown is not None and not (_is_number(countdown) and 0 <= countdown < math.inf):
        raise UsageError(f"countdown={countdown!r}: give seconds, zero or more")
    if name is not None and not (isinstance(name, str) and name):
        raise UsageError(f"queue={name!r}: give the name of a queue")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise UsageError(f"priority={priority!r}: give a whole number")
    for option, value in asked.given_options().items():
        if option in cannot:
            raise UsageError(f"{option}={value!r}: {queue} cannot do that here: {cannot[option]}")
    return asked


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
