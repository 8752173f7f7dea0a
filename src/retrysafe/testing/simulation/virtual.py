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
from retrysafe.testing.simulation.hosts import current_host
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
    return real_clock() if loop is None else current_host().boot_clock(loop.now)


def read_monotonic_clock() -> float:
    loop = _current_loop()
    return _real_monotonic() if loop is None else current_host().monotonic(loop.now)


def read_wall_clock() -> float:
    loop = _current_loop()
    return _real_time() if loop is None else current_host().wall(loop.now)


def read_wall_nanoseconds() -> int:
    return _real_time_ns() if _current_loop() is None else round(read_wall_clock() * 1e6) * 1000


_real_time, _real_time_ns, _real_monotonic = time.time, time.time_ns, time.monotonic


@contextmanager
def virtual_machine(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """Within the block, clocks and randomness are the simulation's."""
    global _running  # noqa: PLW0603 - one process has one `time` module, too
    chance = random.Random(seed)
    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", read_wall_clock),
        (time, "time_ns", read_wall_nanoseconds),
        (time, "monotonic", read_monotonic_clock),
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


_clock_users: tuple[int, list[tuple[Any, str]]] = (0, [])
"""How many modules there were when they were last looked through, and what was found."""


def _find_clock_users(wanted: Callable[[], float]) -> list[tuple[Any, str]]:
    """Every module of ours that imported the process's clock by name."""
    global _clock_users  # noqa: PLW0603 - as above: looking takes longer than a short history
    modules = list(sys.modules.items())
    if _clock_users[0] != len(modules):
        ours = [module for name, module in modules if name.startswith("retrysafe.") and name != __name__]
        found = [(module, name) for module in ours for name, value in vars(module).items() if value is wanted]
        _clock_users = len(modules), found
    return _clock_users[1]
