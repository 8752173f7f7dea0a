"""What everything in one simulated history shares: the loop, the network, the history, and sources of chance.

Whatever takes part is built from a `SimulationStage`: hosts, clients, faults, and the actors that a scenario brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from retrysafe.testing.simulation.history import History, HistoryEvent
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import Network
from retrysafe.testing.simulation.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class SimulationStage:
    seed: int
    plan: Plan
    loop: SimulatedLoop
    network: Network
    history: History

    @property
    def now(self) -> float:
        """True time, in seconds since the start."""
        return self.loop.now

    def note(self, where: str, what: str, about: str = "", **data: Any) -> None:
        """Write one line of the history, now."""
        self.history.events.append(HistoryEvent(self.loop.now, where, what, about, data))

    def draw(self, what: str) -> Random:
        """A source of chance for one thing only: leaving one fault out of a history does not change the others."""
        return Random(f"{self.seed} {what}")

    def add_host(self, name: str) -> Host:
        """A new process, with the clocks that the plan gives to a host of this name."""
        plan = self.plan
        spread = self.draw(f"clock of {name}").uniform(-1.0, 1.0) if plan.skew or plan.drift else 0.0
        return self.loop.add_host(Host(name, plan.skew * spread, plan.drift * spread))
