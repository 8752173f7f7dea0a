"""A scenario: the application, the kinds of purchases that it knows, further actors around it, and further checks.

An actor is whatever else takes part: a broker, a sender of webhooks, a user's database. It is built with the
`SimulationStage` before any process starts, so the application finds it in `AppHost.actors`. Like
`SimulatedProvider`, it has a host of its own, and everything that reaches it goes through `stage.network.call`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from retrysafe.core.records import Record
from retrysafe.testing.simulation.application import AppHost, Deploy
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.plan import QUIET_SECONDS
from retrysafe.testing.simulation.stage import SimulationStage

if TYPE_CHECKING:
    from retrysafe.testing.simulation.fleet import Fleet
    from retrysafe.testing.simulation.outcome import Outcome


class Actor(Protocol):
    """Something that takes part in a history. Each application of a history has actors of its own."""

    name: str
    """`AppHost.actors[name]`, `Outcome.actors[name]`"""
    host: Host

    def start(self, fleet: Fleet) -> None:
        """Called once, when all processes have started. What it begins, it begins on its own host:
        `host.run_inside(stage.loop.create_task, ...)`. `fleet.call` reaches the application."""

    def is_settled(self) -> bool:
        """Whether it has nothing left to do. A history goes on until every actor is settled, or its time is over. An
        actor that waits for a time of its own may have `next_act`: nothing is looked at before it."""


ActorFactory = Callable[[SimulationStage], Actor]
Decide = Callable[[AppHost, Record], Awaitable[str]]
"""Acts on one record with the application's own code, and says what it did, for the history; empty: nothing."""
Checker = Callable[["Outcome"], Iterator[str]]
"""What is wrong with a history: texts of the form `rule: what was seen`."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`kinds`: the kinds of purchases that the application's handler knows; a seed draws from them."""

    deploy: Deploy
    kinds: tuple[str, ...]
    actors: tuple[ActorFactory, ...] = ()
    checkers: tuple[Checker, ...] = ()
    """In addition to those of `checkers.py`."""
    store: str = ""
    """The name of the actor in whose database the store is (`database_store.py`); empty: the store is alone."""
    knows_provider: bool = False
    """The application expects that the provider declines (`DECLINED`), and forgets keys (`SimulatedProvider.key_life`).
    """
    versions: int = 1
    """How many versions the application has: `AppHost.version`. With two, seeds deploy the one over the other."""
    quiet: float = QUIET_SECONDS
    """Everything has to be settled so many seconds after the faults have stopped."""
    decide: Decide | None = None
    """What a person does about a record that is uncertain; by default: what the provider's own list says."""


def build_scenario(deploy: Deploy | Scenario, kinds: tuple[str, ...] | None) -> Scenario:
    """What `World` and `shrink` are given, as a scenario. `kinds` given beside a scenario choose among its own."""
    if isinstance(deploy, Scenario):
        return deploy if kinds is None else replace(deploy, kinds=kinds)
    if not kinds:
        raise TypeError("World() and shrink() need the kinds of purchases that deploy handles: kinds=('order',)")
    return Scenario(deploy, kinds)
