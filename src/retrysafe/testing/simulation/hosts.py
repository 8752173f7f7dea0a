"""Hosts and their clocks: where simulated code runs, and what time it is there.

A host is one process on one machine. Every task, timer and callback belongs to the host in whose context it was made
(`HOST`, a context variable, which asyncio hands on by itself). So a crash stops exactly the code of one process, and a
frozen process goes on later as if nothing had happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from math import inf, nextafter
from typing import Any, TypeVar

R = TypeVar("R")

WALL_START_SECONDS = 1_700_000_000.0
"""The true wall-clock time at which each simulation begins."""


class Host:
    """One process. `skew` is the error of its wall clock in seconds, `drift` the error of all its clocks per second."""

    __slots__ = (
        *("alive", "context", "drift", "frozen_until", "is_off", "lag", "name", "rate", "ready", "skew", "suspended"),
        "tasks",
    )

    def __init__(self, name: str, skew: float = 0.0, drift: float = 0.0) -> None:
        self.name = name
        self.skew, self.drift = skew, drift
        self.rate = 1.0 + drift
        """Seconds of its own for each true second."""
        self.is_off = bool(drift)
        """Whether its monotonic clock ever shows another time than the true one."""
        self.suspended = 0.0
        """Seconds for which the machine was suspended so far: `time.monotonic` does not count them."""
        self.alive = True
        self.frozen_until = 0.0
        self.lag = 0.0
        """A slow machine: seconds that each callback takes."""
        self.ready: deque[Any] = deque()
        self.tasks: list[Any] = []
        """Everything that was started here and has not ended. A coroutine that is collected runs its `finally` blocks,
        which a killed process does not: so all of them are held until the simulation is over."""
        self.context = self.new_context()
        """The context of what arrives here from outside."""

    def monotonic(self, now: float) -> float:
        """`time.monotonic` here when `now` seconds of true time have passed."""
        return (now - self.suspended) * self.rate

    def boot_clock(self, now: float) -> float:
        """The clock that goes on while the machine is suspended."""
        return now * self.rate

    def true_time(self, monotonic: float) -> float:
        """The true time at which `time.monotonic` shows this, or just after it: a timer that is a rounding error too
        early would be set again for the same moment, for ever. A machine may be suspended until later."""
        true = monotonic / self.rate + self.suspended
        while self.monotonic(true) < monotonic:
            true = nextafter(true, inf)
        return true

    def wall(self, now: float) -> float:
        """The host's wall clock."""
        return WALL_START_SECONDS + self.skew + now * self.rate

    def can_run(self, now: float) -> bool:
        return self.alive and self.frozen_until <= now

    def has_work(self) -> bool:
        """Whether a task is under way here, or something waits to run. Tasks that are named `actor...` belong to a
        scenario."""
        if self.ready:
            return True
        self.forget_done_tasks()
        return any(not task.get_name().startswith("actor") for task in self.tasks)

    def forget_done_tasks(self) -> None:
        self.tasks = [task for task in self.tasks if not task.done()]

    def crash(self) -> None:
        """The process is killed: nothing of it runs again, no `finally` block and no `except` clause."""
        self.alive = False
        self.ready.clear()

    def end(self) -> None:
        """The simulation is over: nothing of it runs again, and nothing of it refers to it."""
        self.crash()
        if self is not TRUE_TIME:
            del self.context

    def run_inside(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function in this host's context."""
        return self.new_context().run(function, *args)

    def new_context(self) -> Context:
        context = copy_context()
        context.run(HOST.set, self)
        return context


HOST: ContextVar[Host] = ContextVar("retrysafe_simulated_host")

TRUE_TIME = Host("true time")
"""The host of code that belongs to nobody: the network, the schedule of faults, the checks."""


def current_host() -> Host:
    """The host whose code runs now."""
    return HOST.get(TRUE_TIME)
