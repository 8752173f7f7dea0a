"""The processes of one application: hosts that answer requests, and workers. They start, are killed, start again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from retrysafe.engine.safe import RetrySafe
from retrysafe.testing.simulation.application import AppHost, ClientReply, Purchase
from retrysafe.testing.simulation.chance import draw_share
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.provider import SimulatedProvider
from retrysafe.testing.simulation.requests import ClientRequestLog
from retrysafe.testing.simulation.scenario import Actor, Scenario
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.store import StoreServer
from retrysafe.testing.simulation.walls import WalledStore

PURCHASE = re.compile(r"[pq]\d+")
"""The name of a purchase, as it stands in the keys of records."""

LONG_MEMORY_SECONDS = 30 * 86_400.0
"""Longer than any history: for scenarios whose calls do not say how long a key may be sent again. A webhook may be
handled anew for days."""

HANDLE = "handle"
"""The entry of the application that answers purchases: what `deploy` returned."""


def open_provider(stage: SimulationStage, scenario: Scenario, name: str) -> SimulatedProvider:
    """A payment provider, as the plan has it."""
    plan, host = stage.plan, stage.add_host(name)
    memory, declines = (plan.provider_memory, plan.declines) if scenario.knows_provider else (LONG_MEMORY_SECONDS, 0.0)
    return SimulatedProvider(
        *(stage.loop, stage.network, stage.history, host, memory, plan.provider_errors),
        lambda purchase: bool(declines) and draw_share(stage.seed, f"decline {purchase}") < declines,
        stage.seed,
    )


class Fleet:
    """One application on its hosts."""

    def __init__(
        self,
        stage: SimulationStage,
        scenario: Scenario,
        server: StoreServer,
        purchases: list[Purchase],
        *,
        namespace: str = "shop",
        prefix: str = "",
    ) -> None:
        self.stage = stage
        self.namespace = namespace
        self.provider = open_provider(stage, scenario, f"{prefix}provider")
        self.clients: list[str] = []
        """The names of the hosts of this application's clients."""
        self._keys = {purchase.key: purchase.name for purchase in purchases}
        self.actors: dict[str, Actor] = {actor.name: actor for actor in (make(stage) for make in scenario.actors)}
        self.apps = [f"{prefix}app-{number + 1}" for number in range(stage.plan.hosts)]
        self.workers = [f"{prefix}worker-{number + 1}" for number in range(stage.plan.workers)]
        self.nodes: dict[str, AppHost] = {}
        """The newest process of each name, alive or not."""
        self.versions = dict.fromkeys(self.names, stage.plan.versions[0] if scenario.versions > 1 else 1)
        """Which version of the application each process runs when it starts next."""
        self.walls: Callable[[str], None] | None = None
        """Called with what is wrong when a reply of the store shows another application's records (I34)."""
        self.complaints = 0
        """How many clients were told, since a person looked last, that other code has to answer them."""
        self.requests = ClientRequestLog()
        self._scenario = scenario
        self._kinds = frozenset(purchase.kind for purchase in purchases)
        self.server: StoreServer = server
        if scenario.store:
            self.server = getattr(self.actors[scenario.store], "store_server")  # noqa: B009 - few actors have one
        self._kept: list[AppHost] = []
        """Everything of killed processes, so that nothing of it is collected, and nothing of it runs."""

    @property
    def is_deployed_anew(self) -> bool:
        """Whether this history has two versions of the application."""
        return self._scenario.versions > 1 and len(set(self.stage.plan.versions)) > 1

    @property
    def names(self) -> list[str]:
        return [*self.apps, *self.workers]

    def start(self) -> None:
        """Start all processes, then the actors."""
        for name in self.apps:
            self.start_process(name)
        for name in self.workers:
            if self.stage.plan.worker_start:
                self.stage.loop.call_at_true_time(self.stage.plan.worker_start, self.start_process, name)
            else:
                self.start_process(name)
        for actor in self.actors.values():
            actor.start(self)

    def open_safe(self) -> RetrySafe:
        """A RetrySafe of the current host, on the store at the other end of the network."""
        store: Any = self.server.open_client(self.stage.network)
        if self.walls is not None:
            store = WalledStore(store, self.namespace, self.server.rows, self.walls)
        return RetrySafe(async_store=store, namespace=self.namespace)

    def open_application(self, host: Host, version: int = 1) -> AppHost:
        """The application on one host. A person uses its code, too."""
        node = AppHost(host, self.open_safe(), self.provider, self._kinds, version, dict(self.actors))
        node.entries[HANDLE] = self._scenario.deploy(node)
        return node

    def start_process(self, name: str) -> None:
        host = self.stage.add_host(name)
        self.stage.note(name, "started")
        host.run_inside(self._boot, name, host)

    def _boot(self, name: str, host: Host) -> None:
        node = self.nodes[name] = self.open_application(host, self.versions[name])
        node.entries[HANDLE] = self.requests.wrap(name, node.entries[HANDLE], self.namespace)
        if name in self.workers:
            from retrysafe.worker import Worker

            self.stage.loop.create_task(Worker(node.safe, tick=self.stage.plan.tick).arun())

    def kill(self, name: str, seconds: float) -> None:
        """Kill a process; it starts again after some seconds."""
        node = self.nodes.get(name)
        if node is None or not node.host.alive:
            return
        self._kept.append(node)
        self.stage.note(name, "killed")
        node.host.crash()
        self.stage.loop.call_at_true_time(self.stage.now + seconds, self.start_process, name)

    def deploy(self, name: str, version: int, seconds: float) -> None:
        """Restart a process with another version of the application's code."""
        self.versions[name] = version
        self.stage.note(name, "deployed", version=version)
        self.kill(name, seconds)

    def find_purchase(self, key: str, scope: str = "") -> str:
        """The purchase that a record's key stands for, or that key in that scope."""
        return self._keys.get(key) or next(iter(PURCHASE.findall(f"{key} {scope}")), key)

    def list_hosts(self, names: list[str]) -> list[Host]:
        """The processes of these names that are alive."""
        return [self.nodes[name].host for name in names if name in self.nodes and self.nodes[name].host.alive]

    def is_at_work(self) -> bool:
        """Whether a request is being handled somewhere."""
        nodes = self.nodes
        for name in self.apps:
            host = nodes[name].host
            if host.alive and host.has_work():
                return True
        return False

    async def send(self, app: str, purchase: Purchase, *, seconds: float) -> ClientReply:
        """A client's request. Raises Unanswered or Refused."""
        self._keys[purchase.key] = purchase.name
        reply: ClientReply = await self.call(
            app, HANDLE, purchase, seconds=seconds, what=f"POST {purchase.kind}", about=purchase.name
        )
        return reply

    async def call(self, app: str, entry: str, *args: Any, seconds: float, what: str, about: str = "") -> Any:
        """Have one of the application's functions (`AppHost.entries`) called on a host, over the network. Raises what
        it raises, or Unanswered or Refused."""

        async def serve() -> Any:
            return await self.nodes[app].entries[entry](*args)

        return await self.stage.network.call(self.nodes[app].host, serve, seconds=seconds, what=what, about=about)

    def clear(self) -> None:
        """The simulation is over. What refers to itself is taken apart here: the collector of cycles takes longer."""
        for node in {id(node): node for node in (*self._kept, *self.nodes.values())}.values():
            node.entries.clear()
            for operation in node.safe.operations.values():
                vars(operation).clear()
            vars(node.safe.figures).clear()
            vars(node.safe).clear()
        self._kept.clear()
        self.nodes.clear()
