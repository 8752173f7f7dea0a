"""One application with everything around it: its processes, its clients, a person, its purchases, its provider.

Most histories have one. Some have two, in one store, with the same keys: neither may touch what belongs to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.testing.simulation.application import ClientReply, Purchase
from retrysafe.testing.simulation.clients import Clients
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.leaks import find_leaks
from retrysafe.testing.simulation.people import Person
from retrysafe.testing.simulation.scenario import Actor, Scenario
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.store import StoreServer


@dataclass(slots=True)
class Party:
    fleet: Fleet
    clients: Clients
    person: Person
    purchases: list[Purchase]
    replies: dict[str, list[ClientReply]] = field(default_factory=dict)

    def start(self) -> None:
        self.fleet.start()
        self.person.start()
        self.clients.start(self.purchases, self.replies)

    def list_busy_actors(self) -> list[Actor]:
        """The actors that have something left to do."""
        return [actor for actor in self.fleet.actors.values() if not actor.is_settled()]

    def list_waiting_hosts(self, *, clients: bool) -> list[Host]:
        """The hosts that only look in vain while a message is held back; with `clients`, while a person decides."""
        if clients:
            return [*self.fleet.list_hosts(self.fleet.workers), *self.clients.hosts]
        return [*self.fleet.list_hosts(self.fleet.workers), self.person.host]

    def list_left_running(self) -> list[str]:
        """What the application's processes have left behind."""
        return list(find_leaks(self.fleet))


def open_party(stage: SimulationStage, scenario: Scenario, server: StoreServer) -> Party:
    """The application under test."""
    count = stage.plan.purchases
    kinds = [stage.draw(f"kind of p{number + 1}").choice(scenario.kinds) for number in range(count)]
    purchases = [Purchase(f"p{number + 1}", kind) for number, kind in enumerate(kinds)]
    fleet = Fleet(stage, scenario, server, purchases)
    person = Person(stage, fleet, fleet.server.host, scenario.decide)
    return Party(fleet, Clients(stage, fleet), person, purchases)


def open_neighbour(stage: SimulationStage, scenario: Scenario, server: StoreServer) -> Party:
    """Another application, with the same code, in the same store, under the same key."""
    purchases = [Purchase("q1", stage.draw("kind of q1").choice(scenario.kinds), "key-p1")]
    fleet = Fleet(stage, scenario, server, purchases, namespace="neighbour", prefix="b-")
    person = Person(stage, fleet, server.host, scenario.decide, name="b-person")
    return Party(fleet, Clients(stage, fleet, prefix="b-"), person, purchases)


def is_unsettled(record: Record) -> bool:
    """Whether somebody has to go on with it. A released record without a point is as if it had never been."""
    return record.state is not State.COMPLETED and not (record.state is State.RELEASED and not record.point)
