"""Hosts and their clocks: where simulated code runs, and what time it is there.

A host is one process on one machine. Every task, timer and callback belongs to the host in whose context it was made
(`HOST`, a context variable, which asyncio hands on by itself). So a crash stops exactly the code of one process, and a
frozen process goes on later as if nothing had happened.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")

WALL_START_SECONDS = 1_700_000_000.0
"""The true wall-clock time at which each simulation begins."""


@dataclass(eq=False)
class Host:
    """One process. `skew` is the error of its wall clock in seconds, `drift` the error of both clocks per second."""

    name: str
    skew: float = 0.0
    drift: float = 0.0
    alive: bool = True
    frozen_until: float = 0.0
    ready: deque[asyncio.Handle] = field(default_factory=deque)
    tasks: list[Any] = field(default_factory=list)
    """Everything that was ever started here. A coroutine that is collected runs its `finally` blocks, which a killed
    process does not: so all of them are held until the simulation is over."""

    def monotonic(self, now: float) -> float:
        """The host's own clock when `now` seconds of true time have passed."""
        return now * (1.0 + self.drift)

    def true_time(self, monotonic: float) -> float:
        """The true time at which the host's own clock shows `monotonic`, or just after it: a timer that is a rounding
        error too early would be set again for the same moment, for ever."""
        true = monotonic / (1.0 + self.drift)
        while self.monotonic(true) < monotonic:
            true = math.nextafter(true, math.inf)
        return true

    def wall(self, now: float) -> float:
        """The host's wall clock."""
        return WALL_START_SECONDS + self.skew + self.monotonic(now)

    def can_run(self, now: float) -> bool:
        return self.alive and self.frozen_until <= now

    def crash(self) -> None:
        """The process is killed: nothing of it runs again, no `finally` block and no `except` clause."""
        self.alive = False
        self.ready.clear()

    def run_inside(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function in this host's context."""
        return self.new_context().run(function, *args)

    def new_context(self) -> Context:
        context = copy_context()
        context.run(HOST.set, self)
        return context


TRUE_TIME = Host("true time")
"""The host of code that belongs to nobody: the network, the schedule of faults, the checks."""

HOST: ContextVar[Host] = ContextVar("retrysafe_simulated_host", default=TRUE_TIME)
