"""The five outcomes of a claim: what its caller does next. `judge` (judge.py) reads one of them from each reply."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.core.records import Fence, Record
from retrysafe.core.times import SECOND_MICROS


class Execute(NamedTuple):
    """The claim was granted: run the work (from `record.point` if there is one), then settle it with this fence."""

    fence: Fence
    record: Record
    now: int = 0
    """The store's clock when the claim was granted or recognised."""
    asked: float = 0.0
    """The caller's clock just before the claim was sent."""

    @property
    def until(self) -> float:
        """The end of the lease on the caller's clock. The store read its clock after `asked`, so the real end is not
        earlier."""
        return self.asked + (self.record.lease_until - self.now) / SECOND_MICROS


class Replay(NamedTuple):
    """The work was done: return the stored answer."""

    record: Record


class Busy(NamedTuple):
    """Another caller owns the key: retry in `retry_after` microseconds."""

    retry_after: int


class Mismatch(NamedTuple):
    """The key belongs to another request. Nothing runs, and the stored answer is not shown."""

    first_seen: int


class Uncertain(NamedTuple):
    """The work began, and nobody knows how it ended. Nothing runs until the record is resolved."""

    since: int
    note: str


Outcome = Execute | Replay | Busy | Mismatch | Uncertain
