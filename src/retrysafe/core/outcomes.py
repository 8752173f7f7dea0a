"""What the caller of a claim does next. There are five answers, and every reply has exactly one of them."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.core.records import Fence, Record
from retrysafe.core.times import SECOND_MICROS


class Execute(NamedTuple):
    """It is yours: run it (from `record.point` if there is one), then settle it with this fence."""

    fence: Fence
    record: Record
    now: int = 0
    """By the store's clock, when it was granted or recognised."""
    asked: float = 0.0
    """By the asking process's clock, just before it was sent."""

    @property
    def until(self) -> float:
        """Where the lease ends on the asking process's clock, at the latest: the store read its own after we asked."""
        return self.asked + (self.record.lease_until - self.now) / SECOND_MICROS


class Replay(NamedTuple):
    """It was done: give the stored answer."""

    record: Record


class Busy(NamedTuple):
    """Somebody is at it: come back in `retry_after` microseconds."""

    retry_after: int


class Mismatch(NamedTuple):
    """The key belongs to another request. Nothing runs, and the stored answer is not shown."""

    first_seen: int


class Uncertain(NamedTuple):
    """It began, and nobody knows how it ended. Nothing runs until somebody resolves it."""

    since: int
    note: str


Outcome = Execute | Replay | Busy | Mismatch | Uncertain
