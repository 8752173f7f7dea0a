"""Clocks and randomness of a simulation: the `time`, `random`, `os.urandom` and `secrets` that simulated code sees.

Everything that retrysafe reads from the machine is replaced for as long as a simulation runs, for the thread that runs
it. One process runs one simulation at a time.
"""

from __future__ import annotations

import inspect
import os
import random
import secrets
import sys
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from retrysafe.engine.clock import clock as real_clock
from retrysafe.testing.simulation.declared import read_hints, read_signature
from retrysafe.testing.simulation.hosts import HOST, TRUE_TIME, WALL_START_SECONDS
from retrysafe.testing.simulation.loop import SimulatedLoop

_loop: SimulatedLoop
_thread = 0
"""The simulation that runs now, and the thread that it runs in. Other threads see the real machine. The clocks below
look here. So a module that is imported while a simulation runs, and keeps a clock by name, is right for the next one,
too."""


# The clocks of a host, as `Host` has them, are written out here: simulated code asks for the time at every turn.


def read_process_clock() -> float:
    """The clock of the current host (`Host.boot_clock`); outside a simulation the machine's own."""
    if _thread != get_ident():
        return real_clock()
    return _loop.now * HOST.get(TRUE_TIME).rate


def read_monotonic_clock() -> float:
    if _thread != get_ident():
        return _real_monotonic()
    host = HOST.get(TRUE_TIME)
    return (_loop.now - host.suspended) * host.rate


def read_wall_clock() -> float:
    if _thread != get_ident():
        return _real_time()
    host = HOST.get(TRUE_TIME)
    return WALL_START_SECONDS + host.skew + _loop.now * host.rate


def read_wall_nanoseconds() -> int:
    if _thread != get_ident():
        return _real_time_ns()
    host = HOST.get(TRUE_TIME)
    return round((WALL_START_SECONDS + host.skew + _loop.now * host.rate) * 1e6) * 1000


_real_time, _real_time_ns, _real_monotonic = time.time, time.time_ns, time.monotonic


@contextmanager
def virtual_machine(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """Within the block, clocks and randomness are the simulation's."""
    global _loop, _thread  # noqa: PLW0603 - one process has one `time` module, too
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
        (inspect, "signature", read_signature),
        (typing, "get_type_hints", read_hints),
        *((module, name, read_process_clock) for module, name in _find_clock_users(real_clock)),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    _loop, _thread = loop, get_ident()
    try:
        yield
    finally:
        _thread = 0
        del _loop
        for owner, name, value in kept:
            setattr(owner, name, value)


def _choose(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is the simulation's in its own thread, and the machine's in any other."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (real if _thread != get_ident() else simulated)(*args, **kwargs)

    return call


def _refuse_to_sleep(seconds: float) -> None:
    raise AssertionError(f"time.sleep({seconds!r}) in a simulation: it would stop every host; await asyncio.sleep()")


_clock_users: tuple[int, list[tuple[Any, str]]] = (0, [])
"""How many modules there were when they were last looked through, and what was found."""


def _find_clock_users(wanted: Callable[[], float]) -> list[tuple[Any, str]]:
    """Every module of ours that imported the process's clock by name."""
    global _clock_users  # noqa: PLW0603 - as above: looking takes longer than a short history
    if _clock_users[0] != len(sys.modules):
        modules = list(sys.modules.items())
        ours = [module for name, module in modules if name.startswith("retrysafe.") and name != __name__]
        found = [(module, name) for module in ours for name, value in vars(module).items() if value is wanted]
        _clock_users = len(modules), found
    return _clock_users[1]
