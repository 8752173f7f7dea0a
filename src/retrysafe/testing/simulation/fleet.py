"""The processes of one application: hosts that answer requests, and workers. They start, are killed, start again."""

from __future__ import annotations

from typing import Any

from retrysafe.engine.safe import RetrySafe
from retrysafe.testing.simulation.application import AppHost, ClientReply, Purchase
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.provider import SimulatedProvider
from retrysafe.testing.simulation.scenario import Actor, Scenario
from retrysafe.testing.simulation.stage import Stage
from retrysafe.testing.simulation.store import StoreServer

HANDLE = "handle"
"""The entry of the application that answers purchases: what `deploy` returned."""


class Fleet:
    """One application on its hosts."""

    def __init__(
        self,
        stage: Stage,
        scenario: Scenario,
        server: StoreServer,
        purchases: list[Purchase],
        *,
        namespace: str = "shop",
    ) -> None:
        self.stage = stage
        self.namespace = namespace
        self.provider = SimulatedProvider(stage.loop, stage.network, stage.history, stage.add_host("provider"))
        self.actors: dict[str, Actor] = {actor.name: actor for actor in (make(stage) for make in scenario.actors)}
        self.apps = [f"app-{number + 1}" for number in range(stage.plan.hosts)]
        self.workers = [f"worker-{number + 1}" for number in range(stage.plan.workers)]
        self.nodes: dict[str, AppHost] = {}
        """The newest process of each name, alive or not."""
        self._scenario = scenario
        self._kinds = frozenset(purchase.kind for purchase in purchases)
        self.server: StoreServer = server
        if scenario.store:
            self.server = getattr(self.actors[scenario.store], "store_server")  # noqa: B009 - few actors have one
        self._kept: list[AppHost] = []
        """Everything of killed processes, so that nothing of it is collected, and nothing of it runs."""

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
        return RetrySafe(async_store=self.server.open_client(self.stage.network), namespace=self.namespace)

    def open_application(self, host: Host) -> AppHost:
        """The application on a host that takes no requests: for a person who uses its code."""
        node = AppHost(host, self.open_safe(), self.provider, self._kinds, actors=dict(self.actors))
        node.entries[HANDLE] = self._scenario.deploy(node)
        return node

    def start_process(self, name: str) -> None:
        host = self.stage.add_host(name)
        self.stage.note(name, "started")
        host.run_inside(self._boot, name, host)

    def _boot(self, name: str, host: Host) -> None:
        node = self.nodes[name] = self.open_application(host)
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

    def freeze(self, name: str, seconds: float) -> None:
        """A process stops in the middle, and goes on later as if nothing had happened."""
        if name in self.nodes:
            self.stage.note(name, "frozen", seconds=round(seconds, 1))
            self.stage.loop.freeze(self.nodes[name].host, self.stage.now + seconds)

    def list_hosts(self, names: list[str]) -> list[Host]:
        """The processes of these names that are alive."""
        return [self.nodes[name].host for name in names if name in self.nodes and self.nodes[name].host.alive]

    def is_at_work(self) -> bool:
        """Whether a request is being handled somewhere."""
        return any(host.has_work() for host in self.list_hosts(self.apps))

    async def send(self, app: str, purchase: Purchase, *, seconds: float) -> ClientReply:
        """A client's request. Raises Unanswered or Refused."""
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
        """The simulation is over."""
        self._kept.clear()
        self.nodes.clear()
