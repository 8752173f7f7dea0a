"""A clock for tests: sleeping only adds to a number, and random numbers come from the test."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from retrysafe.client import Clock


@dataclass
class Virtual:
    """A clock that moves only when a caller sleeps."""

    now: float = 1_800_000_000.0
    draws: float = 0.5
    slept: list[float] = field(default_factory=list)
    tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def ambient(self) -> Clock:
        return Clock(
            wall=lambda: self.now,
            clock=lambda: self.now,
            sleep=self.sleep,
            asleep=self.asleep,
            draw=lambda: self.draws,
            token=lambda: f"key-{next(self.tokens)}",
        )
