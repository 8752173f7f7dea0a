"""Traffic statistics of this process: how long routes take, which requests wait, how much each scope uses.

They are in memory, bounded, and of this process only. `Retry-After`, waiting and quotas depend on them. Whether a claim
is granted does not.
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
    """A dictionary that evicts the least recently used item when it is full."""

    def __init__(self, limit: int, make: Callable[[], T]) -> None:
        self._limit = limit
        self._make = make
        self.items: OrderedDict[str, T] = OrderedDict()

    def __getitem__(self, name: str) -> T:
        if name in self.items:
            self.items.move_to_end(name)
        else:
            if len(self.items) >= self._limit:
                self.items.popitem(last=False)
            self.items[name] = self._make()
        return self.items[name]

    def peek(self, name: str) -> T | None:
        return self.items.get(name)

    def put(self, name: str, value: T) -> None:
        self[name]  # makes room
        self.items[name] = value


class RouteDurations:
    """A moving average of the duration of each route, for `Retry-After`."""

    WEIGHT = 0.2

    def __init__(self) -> None:
        self._average: LRUDict[float] = LRUDict(MAX_ROUTES, lambda: 0.0)
        self._lock = threading.Lock()

    def observe(self, target: str, seconds: float) -> None:
        averages = self._average.items
        if len(averages) * 2 <= MAX_ROUTES:  # far from full, so no order has to be kept
            try:
                # No lock: CPython switches threads only at calls and loops, and there is none.
                averages[target] += self.WEIGHT * (seconds - averages[target])
            except KeyError:
                pass
            else:
                return
        with self._lock:
            before = self._average.peek(target)
            self._average.put(target, seconds if before is None else before + self.WEIGHT * (seconds - before))

    def retry_after(self, target: str, lease: float) -> int:
        """Whole seconds, at least one, at most the lease: by then the request is finished or abandoned."""
        with self._lock:
            average = self._average.peek(target)
        return max(1, math.ceil(min(average or 0.0, lease)))


class Waiters:
    """Limits how many requests of this process wait for another one, and shares the places fairly among scopes.

    A scope gets another place while it has less than twice as many places as are free. A single scope gets two thirds
    of all places, the next scope two thirds of the rest, and so on. No scope can take all places, and no place is
    reserved.
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
    """What one scope may use; None means no limit. It is approximate: each process counts only its own requests.

    `leases` (requests running at once) is exact within the process. `live` (keys) and `bytes` (of answers) are
    estimates over a sliding window of the retention. With four processes a scope may use up to four times as much.
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
    """An estimated sum over the last `window` seconds: the current window plus a share of the previous one."""

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
        elapsed = (at - self._began) / window if math.isfinite(window) else 0.0
        return self._now + self._before * (1 - elapsed)

    def _advance_window(self, at: float, window: float) -> None:
        if self._began == -math.inf:
            self._began = at
        elif at - self._began >= window:
            fresh = at - self._began < 2 * window
            self._before, self._now = (self._now if fresh else 0.0), 0.0
            self._began = at


class ScopeUsage:
    """The usage of one scope."""

    __slots__ = ("bytes", "leases", "live")

    def __init__(self) -> None:
        self.leases = 0
        self.live = SlidingWindowSum()
        self.bytes = SlidingWindowSum()


class Quotas:
    """The usage of all scopes, against one Quota."""

    def __init__(self, quota: Quota | None, clock: Clock = time.monotonic) -> None:
        self._quota = quota
        self.limited = quota is not None
        """Whether a claim may be refused because of a quota."""
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
        """`withdrawn_new`: the key was new and its claim was withdrawn, so it does not count as a key."""
        if self._quota is not None:
            with self._lock:
                usage = self._usage[scope]
                usage.leases = max(0, usage.leases - 1)
                usage.bytes.add(size, self._clock(), window)
                if withdrawn_new:
                    usage.live.add(-1, self._clock(), window)
