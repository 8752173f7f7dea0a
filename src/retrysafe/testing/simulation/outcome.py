"""What a history left behind, for the checkers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from retrysafe.core.records import Record
from retrysafe.testing.simulation.application import ClientReply, Purchase
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.plan import Plan
from retrysafe.testing.simulation.provider import SimulatedProvider
from retrysafe.testing.simulation.scenario import Scenario


@dataclass(slots=True)
class Outcome:
    """One application's part of a history. `records` are those of the whole store."""

    plan: Plan
    history: History
    provider: SimulatedProvider
    records: dict[bytes, Record]
    purchases: list[Purchase]
    scenario: Scenario
    actors: dict[str, Any] = field(default_factory=dict)
    """The scenario's own actors, by name."""
    replies: dict[str, list[ClientReply]] = field(default_factory=dict)
    """The final replies to each purchase, by its name; one for each client that sent it."""
    faults: dict[int, str] = field(default_factory=dict)
    """The faults of messages, by the number of the message."""
    host_faults: dict[str, int] = field(default_factory=dict)
    """How often each fault of hosts and of the store was met."""
    steps: int = 0
    seconds: float = 0.0
    left_running: list[str] = field(default_factory=list)
    """What application hosts had left behind at the end (`leaks.py`)."""
    broken: list[str] = field(default_factory=list)
    """Rules that were seen broken while it ran (`watch.py`)."""
    neighbour: Outcome | None = None
    """The other application's part, if there is one."""
