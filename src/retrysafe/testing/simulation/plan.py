"""What a seed decides before anything runs: how large a history is, and what goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrysafe.testing.simulation.chance import choose
from retrysafe.testing.simulation.network import MAX_HELD_SECONDS, NO_FAULTS, FaultRates, draw_rates

FAULTS_END_SECONDS = 900.0
"""Faults stop here; what is held back may still arrive for a while."""
QUIET_SECONDS = 7200.0
"""Everything has to be settled this long after the faults have stopped."""
LOOK_SECONDS = 300.0
"""A person looks at what is uncertain, every five minutes."""
DECIDE_AFTER_SECONDS = 2 * MAX_HELD_SECONDS
"""A person decides about what has been quiet for this long: a charge that is still under way would land by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The circumstances of one history. Printed with a failure, so that a person sees them."""

    rates: FaultRates = NO_FAULTS
    crashes: int = 0
    freezes: int = 0
    partitions: int = 0
    suspends: int = 0
    clock_jumps: int = 0
    slow_hosts: int = 0
    store_restarts: int = 0
    store_faults: int = 0
    """Read-only, full, or a row that is locked."""
    is_lossy: bool = False
    """The store is replicated asynchronously, and says that it may lose what it has acknowledged."""
    failovers: int = 0
    """Only of such a store."""
    provider_memory: float = 86_400.0
    """Seconds for which the provider recognises a key."""
    provider_errors: float = 0.0
    declines: float = 0.0
    """The share of purchases that the provider declines."""
    versions: tuple[int, int] = (1, 1)
    """The version of the application that runs at first, and the one that is deployed while it runs."""
    has_neighbour: bool = False
    """Another application has the same store, with the same keys in its own namespace."""
    skew: float = 0.0
    drift: float = 0.0
    purchases: int = 2
    senders: int = 1
    """How many clients send the same purchase at once: a double click."""
    hosts: int = 2
    workers: int = 1
    tick: float = 60.0
    """Seconds between two rounds of a worker that has nothing to do."""
    worker_start: float = 0.0
    """Seconds until the workers start: most histories are over before they are needed."""
    patient: bool = False
    """Clients and workers sleep while only a person, or a message that is held back, can change anything."""


def draw_plan(seed: int) -> Plan:
    """The circumstances of one seed."""
    return Plan(rates=draw_rates(seed), **{name: choose(seed, name, options) for name, options in OPTIONS.items()})


OPTIONS: dict[str, tuple[Any, ...]] = {
    "crashes": (0, 0, 1, 2, 4),
    "freezes": (0, 0, 1, 2),
    "partitions": (0, 0, 0, 1),
    "suspends": (0, 0, 0, 1),
    "clock_jumps": (0, 0, 1, 2),
    "slow_hosts": (0, 0, 0, 1),
    "store_restarts": (0, 0, 0, 1),
    "store_faults": (0, 0, 0, 1, 2),
    "is_lossy": (False,) * 19 + (True,),
    "failovers": (0, 1, 2),
    "provider_memory": (86_400.0, 86_400.0, 86_400.0, 900.0),
    "provider_errors": (0.0, 0.0, 0.05, 0.3),
    "declines": (0.0, 0.0, 0.3),
    "versions": ((1, 1), (1, 1), (1, 2), (2, 1)),
    "has_neighbour": (False,) * 5 + (True,),
    "skew": (0.0, 0.0, 2.0, 600.0),
    "drift": (0.0, 0.0, 0.001),
    "purchases": (1, 1, 1, 2, 2, 3),
    "senders": (1, 1, 2),
    "hosts": (1, 2, 2, 3),
    "workers": (1, 1, 1, 2),
    "tick": (60.0, 300.0, 300.0, 300.0),
    "worker_start": (0.0, 60.0, 300.0, 300.0),
    "patient": (True,) * 7 + (False,),
}
"""What a seed chooses from. Many histories are small: a rare order of few events is met sooner in them."""
