"""Clocks and randomness of a simulation: the `time`, `random`, `os.urandom` and `secrets` that simulated code sees.

Everything that retrysafe reads from the machine is replaced for as long as a simulation runs, for the thread that runs
it. One process runs one simulation at a time.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from retrysafe.engine.clock import clock as real_clock
from retrysafe.testing.simulation.hosts import HOST
from retrysafe.testing.simulation.loop import SimulatedLoop


class _Simulation(NamedTuple):
    """The simulation that runs now, and the thread that it runs in. Other threads see the real machine."""

    loop: SimulatedLoop
    thread: int


_running: _Simulation | None = None
"""The clocks below look here. So a module that is imported while a simulation runs, and keeps a clock by name, is right
for the next one, too."""


def _current_loop() -> SimulatedLoop | None:
    return _running.loop if _running is not None and _running.thread == threading.get_ident() else None


def read_process_clock() -> float:
    """The clock of the current host; outside a simulation the machine's own."""
    loop = _current_loop()
    return real_clock() if loop is None else HOST.get().monotonic(loop.now)


def read_wall_clock() -> float:
    loop = _current_loop()
    return _real_time() if loop is None else HOST.get().wall(loop.now)


def read_wall_nanoseconds() -> int:
    return _real_time_ns() if _current_loop() is None else round(read_wall_clock() * 1e6) * 1000


_real_time, _real_time_ns = time.time, time.time_ns


@contextmanager
def virtual_machine(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """Within the block, clocks and randomness are the simulation's."""
    global _running  # noqa: PLW0603 - one process has one `time` module, too
    chance = random.Random(seed)
    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", read_wall_clock),
        (time, "time_ns", read_wall_nanoseconds),
        (time, "monotonic", read_process_clock),
        (time, "sleep", _choose(_refuse_to_sleep, time.sleep)),
        (os, "urandom", _choose(chance.randbytes, os.urandom)),
        (secrets, "token_bytes", _choose(lambda count=32: chance.randbytes(count), secrets.token_bytes)),
        (secrets, "token_hex", _choose(lambda count=32: chance.randbytes(count).hex(), secrets.token_hex)),
        *(
            (random, name, _choose(getattr(chance, name), getattr(random, name)))
            for name in ("random", "uniform", "shuffle", "choice", "randrange")
        ),
        *((module, name, read_process_clock) for module, name in _find_clock_users(real_clock)),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    _running = _Simulation(loop, threading.get_ident())
    try:
        yield
    finally:
        _running = None
        for owner, name, value in kept:
            setattr(owner, name, value)


def _choose(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is the simulation's in its own thread, and the machine's in any other."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (real if _current_loop() is None else simulated)(*args, **kwargs)

    return call


def _refuse_to_sleep(seconds: float) -> None:
    raise AssertionError(f"time.sleep({seconds!r}) in a simulation: it would stop every host; await asyncio.sleep()")


def _find_clock_users(wanted: Callable[[], float]) -> list[tuple[Any, str]]:
    """Every module of ours that imported the process's clock by name."""
    modules = [
        module for name, module in list(sys.modules.items()) if name.startswith("retrysafe.") and name != __name__
    ]
    return [(module, name) for module in modules for name, value in vars(module).items() if value is wanted]
