"""A budget for retries, shared by all calls of one client: when everything fails, retrying everything makes it worse.

A bucket of tokens. A retry takes one; a call that ends well gives back a part of one, and time gives back a little,
so that a client with little traffic may retry too. An empty bucket means: this failure is told to the caller at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from retrysafe.client.errors import RetriesError


class Budget:
    """`tokens`: how many retries in one burst. `per_call`: what a success gives back. `per_second`: what time does.

    The defaults allow bursts of 20, and in the long run one retry for every five calls that end well.
    """

    def __init__(self, tokens: float = 20.0, *, per_call: float = 0.2, per_second: float = 0.5) -> None:
        for name, value in (("tokens", tokens), ("per_call", per_call), ("per_second", per_second)):
            if not value >= 0:
                raise RetriesError(name, value, "give a number, zero or more")
        self._most = float(tokens)
        self._per_call = float(per_call)
        self._per_second = float(per_second)
        self._level = self._most
        self._seen: float | None = None
        self._lock = threading.Lock()

    def take(self, clock: Callable[[], float]) -> bool:
        """One retry. False: there is none left."""
        with self._lock:
            now = clock()
            if self._seen is not None:
                self._add(max(0.0, now - self._seen) * self._per_second)
            self._seen = now
            if self._level < 1:
                return False
            self._level -= 1
            return True

    def give(self) -> None:
        """A call ended well."""
        with self._lock:
            self._add(self._per_call)

    @property
    def level(self) -> float:
        return self._level

    def _add(self, amount: float) -> None:
        self._level = min(self._most, self._level + amount)
