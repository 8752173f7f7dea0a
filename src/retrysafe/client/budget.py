"""The retry budget: a token bucket that all calls of one client share. When a server fails every request, retrying them
all makes the outage worse.

A retry takes one token. A successful call adds a part of a token, and so does time, so that a client with little
traffic may retry too. If the bucket is empty, the caller gets the failure at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from retrysafe.client.errors import RetriesError


class Budget:
    """`tokens`: the capacity, which is the longest burst of retries. `per_call`: what a success adds. `per_second`:
    what each second adds.

    The defaults allow bursts of 20, and in the long run one retry for every five successful calls.
    """

    def __init__(self, tokens: float = 20.0, *, per_call: float = 0.2, per_second: float = 0.5) -> None:
        for name, value in (("tokens", tokens), ("per_call", per_call), ("per_second", per_second)):
            if not value >= 0:
                raise RetriesError(name, value, "give a number, zero or more")
        self._capacity = float(tokens)
        self._per_call = float(per_call)
        self._per_second = float(per_second)
        self._level = self._capacity
        self._updated: float | None = None
        self._lock = threading.Lock()

    def take(self, clock: Callable[[], float]) -> bool:
        """Take the token of one retry. False if none is left."""
        with self._lock:
            now = clock()
            if self._updated is not None:
                self._add(max(0.0, now - self._updated) * self._per_second)
            self._updated = now
            if self._level < 1:
                return False
            self._level -= 1
            return True

    def give(self) -> None:
        """Add what a successful call gives."""
        with self._lock:
            self._add(self._per_call)

    @property
    def level(self) -> float:
        return self._level

    def _add(self, amount: float) -> None:
        self._level = min(self._capacity, self._level + amount)
