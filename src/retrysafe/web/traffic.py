"""What this process knows of its own traffic: how long routes take, who waits, who uses how much.

All of it is in memory, of this process alone, and bounded. It steers `Retry-After`, waiting and quotas;
nothing about who may run depends on it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from retrysafe.errors import UsageError

T = TypeVar("T")
Clock = Callable[[], float]

MAX_ROUTES = 1_000
MAX_SCOPES = 10_000


class LRUDict(Generic[T]):
    """A table that forgets what was not used for longest once it is full."""

    def __init__(self, limit: int, make: Callable[[], T]) -> None:
        self._limit = limit
        self._make = make
        self._items: OrderedDict[str, T] = OrderedDict()

    def __getitem__(self, name: str) -> T:
        if name in self._items:
            self._items.move_to_end(name)
        else:
            if len(self._items) >= self._limit:
                self._items.popitem(last=False)
            self._items[name] = self._make()
        return self._items[name]

    def peek(self, name: str) -> T | None:
        return self._items.get(name)

    def put(self, name: str, value: T) -> None:
        self[name]  # makes room
        self._items[name] = value


class RouteDurations:
    """A moving average per route: what `Retry-After` says."""

    WEIGHT = 0.2

    def __init__(self) -> None:
        self._average: LRUDict[float] = LRUDict(MAX_ROUTES, lambda: 0.0)
        self._lock = threading.Lock()

    def observe(self, target: str, seconds: float) -> None:
        with self._lock:
            before = self._average.peek(target)
            now = seconds if before is None else before + self.WEIGHT * (seconds - before)
            self._average.put(target, now)

    def retry_after(self, target: str, lease: float) -> int:
        """Whole seconds, at least one, never longer than the lease: by then it is over or abandoned."""
        with self._lock:
            average = self._average.peek(target)
        return max(1, math.ceil(min(average or 0.0, lease)))


class Waiters:
    """How many requests of this process may wait for another one at the same time, and how they share the places.

    A scope gets another place while it has less than twice as many as are free. Alone it takes two thirds of them; the
    next one two thirds of the rest, and so on: nobody shuts the others out, and nothing is set aside for nobody.
    """

    SHARE = 2

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, scope: str) -> bool:
        with self._lock:
            free = self._limit - self._waiting.total()
            if self._waiting[scope] >= self.SHARE * free:
                return False
            self._waiting[scope] += 1
            return True

    def leave(self, scope: str) -> None:
        with self._lock:
            self._waiting[scope] -= 1
            if not self._waiting[scope]:
                del self._waiting[scope]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one scope may use; None is no limit. Approximate: each process counts for itself, and from its start.

    `leases` (running at once) is exact for the process. `live` (keys) and `bytes` (of answers) are a sliding estimate
    over the retention. So with four workers a scope may get up to four times as much.
    """

    live: int | None = None
    bytes: int | None = None
    leases: int | None = None

    def __post_init__(self) -> None:
        for name in ("live", "bytes", "leases"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"Quota({name}={value!r}): give a whole number of at least 1, or None for no limit")


class SlidingWindowSum:
    """A sum over about the last `window` seconds: this window's, and what is left of the one before."""

    __slots__ = ("_before", "_began", "_now")

    def __init__(self) -> None:
        self._began = -math.inf
        self._before = 0.0
        self._now = 0.0

    def add(self, amount: float, at: float, window: float) -> None:
        self._advance_window(at, window)
        self._now += amount

    def total_at(self, at: float, window: float) -> float:
        self._advance_window(at, window)
        gone = (at - self._began) / window if math.isfinite(window) else 0.0
        return self._now + self._before * (1 - gone)

    def _advance_window(self, at: float, window: float) -> None:
        if self._began == -math.inf:
            self._began = at
        elif at - self._began >= window:
            fresh = at - self._began < 2 * window
            self._before, self._now = (self._now if fresh else 0.0), 0.0
            self._began = at


class ScopeUsage:
    """What one scope uses."""

    __slots__ = ("bytes", "leases", "live")

    def __init__(self) -> None:
        self.leases = 0
        self.live = SlidingWindowSum()
        self.bytes = SlidingWindowSum()


class Quotas:
    """The usage of all scopes, against one Quota."""

    def __init__(self, quota: Quota | None, clock: Clock = time.monotonic) -> None:
        self._quota = quota
        self._clock = clock
        self._usage: LRUDict[ScopeUsage] = LRUDict(MAX_SCOPES, ScopeUsage)
        self._lock = threading.Lock()

    def is_exceeded(self, scope: str, window: float) -> bool:
        quota = self._quota
        if quota is None:
            return False
        with self._lock:
            usage, now = self._usage[scope], self._clock()
            return (
                (quota.leases is not None and usage.leases >= quota.leases)
                or (quota.live is not None and usage.live.total_at(now, window) >= quota.live)
                or (quota.bytes is not None and usage.bytes.total_at(now, window) >= quota.bytes)
            )

    def record_start(self, scope: str, new: bool, window: float) -> None:
        if self._quota is not None:
            with self._lock:
                usage = self._usage[scope]
                usage.leases += 1
                if new:
                    usage.live.add(1, self._clock(), window)

    def record_end(self, scope: str, size: int, window: float, *, withdrawn_new: bool = False) -> None:
        """`unborn`: it was new, and was withdrawn: it counts as no key at all."""
        if self._quota is not None:
            with self._lock:
                usage = self._usage[scope]
                usage.leases = max(0, usage.leases - 1)
                usage.bytes.add(size, self._clock(), window)
                if withdrawn_new:
                    usage.live.add(-1, self._clock(), window)
