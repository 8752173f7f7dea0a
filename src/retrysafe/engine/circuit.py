"""Whether the store is there, as far as this process knows: a decision, for both colours. No clock and no I/O.

A store that cannot be reached makes everybody wait for the connection's timeout before they are told so. So after one
failure to connect, new claims are refused at once, and only they: nothing has begun for them. Whoever owns a key goes
on trying to settle it, and the first of those that gets through, or a probe in the background, lets claims in again.
"""

from __future__ import annotations

from retrysafe.core.ops import Lookup
from retrysafe.errors import StoreError, StoreOutage, StoreUnreachable

PROBE = Lookup(bytes(32))
"""Of nobody: it costs one round trip, and changes nothing."""

FIRST, LONGEST = 0.25, 2.0
"""Seconds between two probes: the first pause, and the longest."""


class Circuit:
    """Closed: claims go to the store. Open since `since`: they are refused."""

    __slots__ = ("_why", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._why = ""

    def met(self, error: StoreError, now: float) -> None:
        """An operation failed. Contention (a row that is held, a pool that is exhausted) says nothing either way."""
        if says_something(error):
            self.since = None
        elif isinstance(error, StoreUnreachable) and self.since is None:
            self.since, self._why = now, str(error)

    def closes(self) -> None:
        """It answered, whatever it said."""
        self.since = None

    def refusal(self, now: float) -> StoreUnreachable | None:
        """What to tell a new claim; None: ask the store."""
        since = self.since
        if since is None:
            return None
        return StoreUnreachable(
            f"the store has not been reached for {max(now - since, 0.0):.1f} s, so new claims are refused at once; it "
            f"is asked again every {LONGEST:g} s or sooner. What it was then: {self._why}"
        )


def says_something(error: Exception) -> bool:
    """Whether an error is proof that the store was reached. Others than its own are told to whoever claims next."""
    return not isinstance(error, StoreOutage)


def next_pause(pause: float) -> float:
    """Twice as long each time."""
    return min(pause * 2, LONGEST)
