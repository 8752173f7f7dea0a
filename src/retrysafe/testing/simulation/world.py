"""A simulated deployment: application hosts, workers, clients, a person, one store, one payment provider.

`World(seed, deploy).run()` plays one history and returns what it left. The application is the user's own: `deploy` is
called once on each host, whenever its process starts, with that host's `AppHost`, and gives back what answers requests.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from retrysafe.core.ops import List
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotUncertain, RetrySafeError
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import HOST, Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import (
    MAX_HELD_SECONDS,
    NO_FAULTS,
    FaultRates,
    Network,
    Refused,
    Unanswered,
    draw_rates,
)
from retrysafe.testing.simulation.provider import SimulatedProvider
from retrysafe.testing.simulation.requests import RequestLog
from retrysafe.testing.simulation.store import RemoteStore, StoreServer
from retrysafe.testing.simulation.virtual import virtual_machine
from retrysafe.testing.simulation.watch import Watch

CLIENT_TIMEOUT_SECONDS = 30.0
FAULTS_END_SECONDS = 900.0
"""Faults stop here; what is held back may still arrive for a while."""
QUIET_SECONDS = 7200.0
"""Everything has to be settled this long after the faults have stopped."""
LOOK_SECONDS = 300.0
"""A person looks at what is uncertain, every five minutes."""
DECIDE_AFTER_SECONDS = 2 * MAX_HELD_SECONDS
"""A person decides about what has been quiet for this long: a charge that is still under way would land by then."""
MAX_STEPS = 400_000
PURCHASE = re.compile(r"p\d+")
"""The name of a purchase, as it stands in the keys of records."""


class ClientReply(NamedTuple):
    """What a client is told: the status decides whether it sends again."""

    status: int
    body: bytes

    @property
    def is_final(self) -> bool:
        return self.status < 500 and self.status not in (409, 425, 429)


@dataclass(frozen=True, slots=True)
class Purchase:
    """One thing that a client wants to happen once. `key` is its idempotency key."""

    name: str
    kind: str

    @property
    def key(self) -> str:
        return f"key-{self.name}"


Handler = Callable[[Purchase], Awaitable[ClientReply]]


@dataclass(slots=True)
class AppHost:
    """One host that runs the application, as `deploy` sees it."""

    host: Host
    safe: RetrySafe
    provider: SimulatedProvider
    version: int
    """Which version of the application this host runs; a deployment changes it."""


Deploy = Callable[[AppHost], Handler]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed decides before anything runs. Printed with a failure, so that a person sees the circumstances."""

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


@dataclass(slots=True)
class Outcome:
    """What a history left behind, for the checkers."""

    plan: Plan
    history: History
    provider: SimulatedProvider
    records: dict[bytes, Record]
    purchases: list[Purchase]
    replies: dict[str, list[ClientReply]] = field(default_factory=dict)
    """The final replies to each purchase, by its name; one for each client that sent it."""
    faults: dict[int, str] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    left_running: list[str] = field(default_factory=list)
    """Tasks of application hosts that were still there at the end."""
    broken: list[str] = field(default_factory=list)
    """Rules that were seen broken while it ran (`watch.py`)."""


class World:
    """One history. `kinds`: the kinds of purchases that the application's handler knows."""

    def __init__(
        self,
        seed: int,
        deploy: Deploy,
        *,
        kinds: tuple[str, ...],
        plan: Plan | None = None,
        suppressed: frozenset[int] = frozenset(),
        hosts: int = 2,
        workers: int = 1,
    ) -> None:
        self.seed = seed
        self.plan = plan or draw_plan(seed)
        self._deploy = deploy
        self._loop = SimulatedLoop(Random(seed * 7 + 2), MAX_STEPS)
        self.history = History()
        self._network = Network(self._loop, self.history, seed, self.plan.rates, suppressed)
        self._store_host = self._add_host("store")
        self._memory = MemoryStore()
        self._server = StoreServer(self._store_host, self._memory)
        self._provider = SimulatedProvider(self._loop, self._network, self.history, self._add_host("provider"))
        self._apps = [f"app-{number + 1}" for number in range(hosts)]
        self._workers = [f"worker-{number + 1}" for number in range(workers)]
        self._nodes: dict[str, tuple[AppHost, Handler]] = {}
        self._people = self._add_host("person")
        self._purchases = [
            Purchase(f"p{number + 1}", self._draw(f"kind of p{number + 1}").choice(kinds))
            for number in range(self.plan.purchases)
        ]
        self._kept: list[Any] = []
        """Everything of killed processes, so that nothing of it is collected, and nothing of it runs."""

    def run(self) -> Outcome:
        """Play it. The garbage collector is off meanwhile: what it finalises depends on the machine."""
        outcome = Outcome(self.plan, self.history, self._provider, self._memory._records, self._purchases)
        watch = Watch(self._memory, self._loop, self._store_host, self.history, outcome.broken)
        self._server.records, self._provider.on_send = watch, watch.watch_sending
        self._requests = RequestLog(watch.watch_answer)
        logging.disable(logging.CRITICAL)
        collecting = gc.isenabled()
        gc.disable()
        try:
            with virtual_machine(self._loop, self.seed):
                try:
                    self._loop.run_until(self._play(outcome))
                finally:
                    outcome.seconds = self._loop.now
                    self._end()
        finally:
            logging.disable(logging.NOTSET)
            if collecting:
                gc.enable()
        outcome.faults, outcome.steps = self._network.met, self._loop.steps
        return outcome

    # The play ----------------------------------------------------------------------------------------

    async def _play(self, outcome: Outcome) -> None:
        for name in (*self._apps, *self._workers):
            self._start_process(name)
        self._schedule_faults()
        self._people.run_inside(self._loop.create_task, self._look_after())
        clients = []
        for purchase in self._purchases:
            for number in range(self.plan.senders):
                client = self._add_host(f"client-{purchase.name}{'abc'[number]}")
                replies = outcome.replies.setdefault(purchase.name, [])
                clients.append(client.run_inside(self._loop.create_task, self._send_until_told(purchase, replies)))
        end = FAULTS_END_SECONDS + QUIET_SECONDS
        await asyncio.wait(clients, timeout=end)
        # What is held back lands, and the worker and the person finish the rest.
        await asyncio.sleep(max(0.0, FAULTS_END_SECONDS + 2 * MAX_HELD_SECONDS - self._loop.now))
        while self._find_unsettled() and self._loop.now < end:  # noqa: ASYNC110 - the end is a state, not an event
            await asyncio.sleep(60.0)
        outcome.left_running = self._find_left_running()

    async def _send_until_told(self, purchase: Purchase, replies: list[ClientReply]) -> None:
        """A client as our documents want it: the same key again, after growing pauses, until the answer is final."""
        me = HOST.get().name
        chance = self._draw(me)
        await asyncio.sleep(chance.uniform(0.0, 5.0))
        for attempt in range(200):
            app = chance.choice(self._apps)
            try:
                reply: ClientReply = await self._network.call(
                    self._host_of(app),
                    lambda app=app: self._handle(app, purchase),  # type: ignore[misc]
                    seconds=CLIENT_TIMEOUT_SECONDS,
                    what=f"POST {purchase.kind}",
                    about=purchase.name,
                )
            except (Unanswered, Refused, RetrySafeError, OSError):
                reply = ClientReply(503, b"")
            self.history.note(self._loop.now, me, "told", purchase.name, status=reply.status, body=reply.body)
            if reply.is_final or (reply.status == 500 and b"unknown" not in reply.body):
                replies.append(reply)
                return
            await asyncio.sleep(min(60.0, 0.5 * 2**attempt) * chance.uniform(0.5, 1.0))

    async def _handle(self, app: str, purchase: Purchase) -> ClientReply:
        if app not in self._nodes:
            raise ConnectionError(f"{app} is not there")
        _, handler = self._nodes[app]
        return await handler(purchase)

    async def _look_after(self) -> None:
        """A person who looks at what is uncertain, asks the provider, and decides."""
        safe = RetrySafe(async_store=RemoteStore(self._network, self._server), namespace="shop")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for record in await self._list_uncertain(safe):
                about = PURCHASE.findall(record.key)[0]
                if not self._is_quiet(record):
                    continue
                found = self._provider.find(about)
                try:
                    await safe.aresolve(
                        record.id,
                        happened=bool(found),
                        # As our documents say: only an HTTP answer can be given by hand.
                        answer=_answer_of(found) if found and record.kind != "function" else None,
                        because="the provider's own list",
                        attempt=record.attempt,
                    )
                except (NotUncertain, RetrySafeError):
                    continue
                self.history.note(self._loop.now, "person", "resolved", about, happened=bool(found))

    async def _list_uncertain(self, safe: RetrySafe) -> list[Record]:
        try:
            page = await safe.aexecute(List("shop", State.UNCERTAIN, limit=100))
        except RetrySafeError:
            return []
        return list(page.records)

    def _is_quiet(self, record: Record) -> bool:
        return self._store_host.wall(self._loop.now) - record.started / 1e6 > DECIDE_AFTER_SECONDS

    def _find_left_running(self) -> list[str]:
        """Tasks of living application hosts that are not over although nothing is left to do."""
        hosts = [self._nodes[name][0].host for name in self._apps if name in self._nodes]
        return [
            f"{task.get_coro().__qualname__} on {host.name}"
            for host in hosts
            for task in host.tasks
            if host.alive and not task.done() and not task.get_name().startswith("actor")
        ]

    def _find_unsettled(self) -> list[Record]:
        return [record for record in self._memory._records.values() if record.state is not State.COMPLETED]

    # Processes ---------------------------------------------------------------------------------------

    def _draw(self, what: str) -> Random:
        """A source of chance for one thing only: leaving one fault out of a history does not change the others."""
        return Random(f"{self.seed} {what}")

    def _add_host(self, name: str) -> Host:
        spread = self._draw(f"clock of {name}").uniform(-1.0, 1.0)
        return self._loop.add_host(Host(name, self.plan.skew * spread, self.plan.drift * spread))

    def _host_of(self, name: str) -> Host:
        node = self._nodes.get(name)
        return self._store_host if node is None else node[0].host

    def _start_process(self, name: str) -> None:
        host = self._add_host(name)
        self.history.note(self._loop.now, name, "started")
        host.run_inside(self._boot, name, host)

    def _boot(self, name: str, host: Host) -> None:
        safe = RetrySafe(async_store=RemoteStore(self._network, self._server), namespace="shop")
        node = AppHost(host, safe, self._provider, 1)
        self._nodes[name] = node, self._requests.wrap(name, self._deploy(node))
        if name in self._workers:
            from retrysafe.worker import Worker

            self._loop.create_task(Worker(safe).arun())

    def _kill(self, name: str, seconds: float) -> None:
        node, _ = self._nodes[name]
        if not node.host.alive:
            return
        self._kept.append(self._nodes[name])
        self.history.note(self._loop.now, name, "killed")
        node.host.crash()
        self._loop.call_at_true_time(self._loop.now + seconds, self._start_process, name)

    def _freeze(self, name: str, seconds: float) -> None:
        node, _ = self._nodes[name]
        self.history.note(self._loop.now, name, "frozen", seconds=round(seconds, 1))
        node.host.frozen_until = self._loop.now + seconds

    def _cut(self, name: str, seconds: float) -> None:
        node, _ = self._nodes[name]
        other = self._store_host if seconds < 100.0 else self._provider.host
        self.history.note(self._loop.now, name, "cut off", other=other.name, seconds=round(seconds, 1))
        self._network.part(node.host, other)
        self._loop.call_at_true_time(self._loop.now + seconds, self._network.heal)

    def _restart_store(self, _: str, seconds: float) -> None:
        self._server.is_down = True
        self.history.note(self._loop.now, "store", "down", seconds=round(seconds, 1))
        self._loop.call_at_true_time(self._loop.now + seconds, self._bring_store_back)

    def _bring_store_back(self) -> None:
        self._server.is_down = False
        self.history.note(self._loop.now, "store", "up")

    def _schedule_faults(self) -> None:
        """When what goes wrong with whole hosts, and for how long."""
        plan = self.plan
        for what, count, most_seconds in (
            (self._kill, plan.crashes, 20.0),
            (self._freeze, plan.freezes, 300.0),
            (self._cut, plan.partitions, 200.0),
            (self._restart_store, plan.store_restarts, 30.0),
        ):
            for number in range(count):
                chance = self._draw(f"{what.__name__} {number}")
                # Most of what can go wrong does so while something is under way: soon after the start.
                when = chance.uniform(0.0, chance.choice((6.0, 120.0, FAULTS_END_SECONDS)))
                name = chance.choice([*self._apps, *self._workers])
                self._loop.call_at_true_time(when, what, name, chance.uniform(0.5, most_seconds))
        self._loop.call_at_true_time(FAULTS_END_SECONDS, self._stop_faults)

    def _stop_faults(self) -> None:
        self._network.healed = True
        self._network.heal()
        self.history.note(self._loop.now, "network", "healed")

    def _end(self) -> None:
        """Nothing runs any more. What Python collects from here on belongs to killed processes."""
        hosts = self._loop._hosts
        self._loop.abandon(hosts)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for host in hosts:
                    for task in host.tasks:
                        _close_quietly(task)
                    host.tasks.clear()
                self._kept.clear()
                self._nodes.clear()
        finally:
            sys.unraisablehook = hook


def _close_quietly(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    if not task.done() and coroutine is not None:
        with suppress(BaseException):  # code of a killed process that would go on
            coroutine.close()


def _answer_of(found: list[dict[str, Any]]) -> Answer:
    return Answer(201, b'{"charge": %d}' % found[0]["number"])
