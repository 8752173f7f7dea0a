"""What a seed decides before anything runs: how large a history is, and what goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

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
    store_restarts: int = 0
    skew: float = 0.0
    drift: float = 0.0
    purchases: int = 2
    senders: int = 1
    """How many clients send the same purchase at once: a double click."""


def draw_plan(seed: int) -> Plan:
    """The circumstances of one seed."""
    chance = Random(seed)
    return Plan(
        rates=draw_rates(chance),
        crashes=chance.choice((0, 0, 1, 2, 4)),
        freezes=chance.choice((0, 0, 1, 2)),
        partitions=chance.choice((0, 0, 0, 1)),
        store_restarts=chance.choice((0, 0, 0, 1)),
        skew=chance.choice((0.0, 0.0, 2.0, 600.0)),
        drift=chance.choice((0.0, 0.0, 0.001)),
        purchases=chance.choice((1, 1, 2, 3)),
        senders=chance.choice((1, 1, 2)),
    )
