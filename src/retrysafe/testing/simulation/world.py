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
from random import Random
from typing import Any

from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation.application import Deploy, Purchase
from retrysafe.testing.simulation.clients import start_clients
from retrysafe.testing.simulation.faults import FaultSchedule
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import MAX_HELD_SECONDS, Network
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.people import look_after
from retrysafe.testing.simulation.plan import FAULTS_END_SECONDS, QUIET_SECONDS, Plan, draw_plan
from retrysafe.testing.simulation.requests import RequestLog
from retrysafe.testing.simulation.scenario import Scenario, build_scenario
from retrysafe.testing.simulation.stage import Stage
from retrysafe.testing.simulation.store import StoreServer
from retrysafe.testing.simulation.virtual import virtual_machine
from retrysafe.testing.simulation.watch import Watch

MAX_STEPS = 400_000


class World:
    """One history. `kinds`: the kinds of purchases that the application's handler knows. `detailed`: the history keeps
    every message, for a drawing."""

    def __init__(
        self,
        seed: int,
        deploy: Deploy | Scenario,
        *,
        kinds: tuple[str, ...] | None = None,
        plan: Plan | None = None,
        suppressed: frozenset[int] = frozenset(),
        hosts: int = 2,
        workers: int = 1,
        detailed: bool = False,
    ) -> None:
        self.seed = seed
        self.plan = plan = plan or draw_plan(seed)
        self.scenario = build_scenario(deploy, kinds)
        self.history = History(detailed=detailed)
        self._loop = SimulatedLoop(Random(seed * 7 + 2), MAX_STEPS)
        network = Network(self._loop, self.history, seed, plan.rates, suppressed)
        self.stage = stage = Stage(seed, plan, self._loop, network, self.history)
        self._memory = MemoryStore()
        self._server = StoreServer(stage.add_host("store"), self._memory)
        self._fleet = Fleet(stage, self.scenario, self._server, hosts=hosts, workers=workers)
        self._person = stage.add_host("person")
        self._purchases = [
            Purchase(f"p{number + 1}", stage.draw(f"kind of p{number + 1}").choice(self.scenario.kinds))
            for number in range(plan.purchases)
        ]

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
        watch = Watch(self._memory, self._loop, self._server.host, self.history, outcome.broken)
        self._server.records, fleet.provider.on_send = watch, watch.watch_sending
        fleet.requests = RequestLog(watch.watch_answer)
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
        stage, fleet = self.stage, self._fleet
        fleet.start()
        FaultSchedule(stage, fleet, self._server).start()
        self._person.run_inside(self._loop.create_task, look_after(stage, fleet, self._server.host))
        clients = start_clients(stage, fleet, self._purchases, outcome.replies)
        end = FAULTS_END_SECONDS + QUIET_SECONDS
        await asyncio.wait(clients, timeout=end)
        # What is held back lands, and the worker and the person finish the rest.
        await asyncio.sleep(max(0.0, FAULTS_END_SECONDS + 2 * MAX_HELD_SECONDS - self._loop.now))
        while self._is_unsettled() and self._loop.now < end:  # noqa: ASYNC110 - the end is a state, not an event
            await asyncio.sleep(60.0)
        outcome.left_running = self._find_left_running()

    def _find_left_running(self) -> list[str]:
        """Tasks of living application hosts that are not over although nothing is left to do. Those that are named
        `actor...` belong to a scenario."""
        hosts = [self._fleet.nodes[name].host for name in self._fleet.apps]
        return [
            f"{task.get_coro().__qualname__} on {host.name}"
            for host in hosts
            for task in host.tasks
            if host.alive and not task.done() and not task.get_name().startswith("actor")
        ]

    def _is_unsettled(self) -> bool:
        return bool(self._find_unsettled()) or not all(actor.is_settled() for actor in self._fleet.actors.values())

    def _find_unsettled(self) -> list[Record]:
        return [record for record in self._memory._records.values() if record.state is not State.COMPLETED]

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


def _close_quietly(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    if not task.done() and coroutine is not None:
        with suppress(BaseException):  # code of a killed process that would go on
            coroutine.close()
