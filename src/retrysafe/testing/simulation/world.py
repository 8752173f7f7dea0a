"""A simulated deployment: application hosts, workers, clients, a person, one store, one payment provider.

`World(seed, deploy, kinds=...).run()` plays one history and returns what it left. The application is the user's own:
`deploy` is called once on each host, whenever its process starts, with that host's `AppHost`, and gives back what
answers requests. A `Scenario` in place of `deploy` brings further actors and checks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from contextlib import suppress
from math import inf
from random import Random
from typing import Any

from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation.application import Deploy, Purchase
from retrysafe.testing.simulation.clients import Clients
from retrysafe.testing.simulation.faults import FaultSchedule
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import Network
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.people import Person
from retrysafe.testing.simulation.plan import FAULTS_END_SECONDS, Plan, draw_plan
from retrysafe.testing.simulation.scenario import Scenario, build_scenario
from retrysafe.testing.simulation.stage import Stage
from retrysafe.testing.simulation.store import StoreServer
from retrysafe.testing.simulation.virtual import virtual_machine
from retrysafe.testing.simulation.watch import watch_records

MAX_STEPS = 400_000
WAIT_SECONDS = 20.0
CALM_SECONDS = 2.0
"""Between two looks at whether it is over, with clients that wait for an answer and without."""


class World:
    """One history. `kinds`: the kinds of purchases that the application's handler knows."""

    def __init__(
        self,
        seed: int,
        deploy: Deploy | Scenario,
        *,
        kinds: tuple[str, ...] | None = None,
        plan: Plan | None = None,
        suppressed: frozenset[int] = frozenset(),
    ) -> None:
        self.seed = seed
        self.plan = plan = plan or draw_plan(seed)
        self.scenario = build_scenario(deploy, kinds)
        self.history = History()
        self._loop = SimulatedLoop(Random(seed * 7 + 2), MAX_STEPS)
        network = Network(self._loop, self.history, seed, plan.rates, suppressed)
        self.stage = stage = Stage(seed, plan, self._loop, network, self.history)
        self._purchases = [
            Purchase(f"p{number + 1}", stage.draw(f"kind of p{number + 1}").choice(self.scenario.kinds))
            for number in range(plan.purchases)
        ]
        alone = StoreServer(stage.add_host("store"), MemoryStore())
        self._fleet = Fleet(stage, self.scenario, alone, self._purchases)
        self._server = self._fleet.server
        self._memory: Any = self._server.records
        self._person = Person(stage, self._fleet, self._server.host, self.scenario.decide)
        self._asleep: list[Host] = []
        """Hosts that sleep while there is nothing for them to do."""

    def run(self) -> Outcome:
        """Play it. The garbage collector is off meanwhile: what it finalises depends on the machine."""
        fleet = self._fleet
        outcome = Outcome(
            self.plan,
            self.history,
            fleet.provider,
            self._memory._records,
            self._purchases,
            self.scenario,
            dict(fleet.actors),
        )
        self._server.records = watch_records(self._memory, self._loop, outcome.broken)
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
        outcome.faults, outcome.steps = self.stage.network.met, self._loop.steps
        return outcome

    async def _play(self, outcome: Outcome) -> None:
        """Until everybody was told, everything is settled, and nothing is under way any more."""
        stage, fleet = self.stage, self._fleet
        fleet.start()
        FaultSchedule(stage, fleet, self._server).start()
        self._person.start()
        clients = Clients(stage, fleet, outcome.replies)
        clients.start(self._purchases)
        pause: float | None = WAIT_SECONDS
        while pause is not None and self._loop.now < FAULTS_END_SECONDS + self.scenario.quiet:
            if clients.list_waiting() and not self._asleep:
                await asyncio.wait(clients.list_waiting(), timeout=pause)
            else:
                await asyncio.sleep(pause)
            pause = self._find_pause(clients)

    def _find_pause(self, clients: Clients) -> float | None:
        """How long to wait before the next look; None: it is over. If all that is left is to wait, the hosts that would
        only look in vain sleep meanwhile."""
        fleet, landing = self._fleet, self.stage.network.find_next_landing()
        waiting = clients.list_waiting()
        unsettled = [record for record in self._memory._records.values() if is_unsettled(record)]
        busy = [actor for actor in fleet.actors.values() if not actor.is_settled()]
        if fleet.is_at_work() or busy:
            pause = CALM_SECONDS
            if busy and not waiting and not unsettled and landing is None:
                pause = max(pause, min(getattr(actor, "next_act", 0.0) for actor in busy) - self._loop.now)
                if pause > CALM_SECONDS and self.plan.patient:
                    return self._put_to_sleep([*fleet.list_hosts(fleet.workers), self._person.host], pause)
        elif not waiting and not unsettled:
            if landing is None:
                return None
            pause = landing - self._loop.now + CALM_SECONDS
            if self.plan.patient:
                return self._put_to_sleep([*fleet.list_hosts(fleet.workers), self._person.host], pause)
        elif (
            self.plan.patient
            and landing is None
            and unsettled
            and all(record.state is State.UNCERTAIN for record in unsettled)
        ):
            look = self._person.find_next_look() - self._loop.now + CALM_SECONDS
            return self._put_to_sleep([*fleet.list_hosts(fleet.names), *clients.hosts], look)
        else:
            pause = WAIT_SECONDS if waiting else CALM_SECONDS
        self._wake_up()
        return pause

    def _put_to_sleep(self, hosts: list[Host], pause: float) -> float:
        for host in hosts:
            if host.alive and host.frozen_until <= self._loop.now:
                self._loop.freeze(host, inf)
                self._asleep.append(host)
        return pause

    def _wake_up(self) -> None:
        for host in self._asleep:
            self._loop.thaw(host)
        self._asleep.clear()

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
                self._fleet.clear()
        finally:
            sys.unraisablehook = hook


def is_unsettled(record: Record) -> bool:
    """Whether somebody has to go on with it. A released record without a point is as if it had never been."""
    return record.state is not State.COMPLETED and not (record.state is State.RELEASED and not record.point)


def _close_quietly(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    if not task.done() and coroutine is not None:
        with suppress(BaseException):  # code of a killed process that would go on
            coroutine.close()
