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
from math import inf
from random import Random
from typing import Any

from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.operations.steps import read_type_hints
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation.application import Deploy
from retrysafe.testing.simulation.faults import FaultSchedule
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import Network
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.party import Party, is_unsettled, open_neighbour, open_party
from retrysafe.testing.simulation.plan import FAULTS_END_SECONDS, Plan, draw_plan
from retrysafe.testing.simulation.requests import ClientRequestLog
from retrysafe.testing.simulation.scenario import Scenario, build_scenario
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.store import ReplicatedServer, StoreServer
from retrysafe.testing.simulation.virtual import virtual_machine
from retrysafe.testing.simulation.watch import Watch

MAX_STEPS = 400_000
WAIT_SECONDS = 20.0
CALM_SECONDS = 2.0
"""Between two looks at whether it is over, with clients that wait for an answer and without."""


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
        detailed: bool = False,
    ) -> None:
        self.seed = seed
        self.plan = plan = plan or draw_plan(seed)
        self.scenario = build_scenario(deploy, kinds)
        self.history = History(detailed=detailed)
        self._loop = SimulatedLoop(Random(seed * 7 + 2), MAX_STEPS)
        network = Network(self._loop, self.history, seed, plan.rates, suppressed)
        self.stage = stage = SimulationStage(seed, plan, self._loop, network, self.history)
        alone = open_server(stage)
        self._parties = [open_party(stage, self.scenario, alone)]
        self._server = self._parties[0].fleet.server
        self._memory: Any = self._server.records
        if plan.has_neighbour and not self.scenario.actors:
            self._parties.append(open_neighbour(stage, self.scenario, self._server))
        self._faults = FaultSchedule(stage, [party.fleet for party in self._parties], self._server)
        self._asleep: list[Host] = []
        """Hosts that sleep while there is nothing for them to do."""

    def run(self) -> Outcome:
        """Play it. The garbage collector is off meanwhile: what it finalises depends on the machine."""
        outcome = self._open_outcome(self._parties[0])
        for party in self._parties[1:]:
            outcome.neighbour = self._open_outcome(party)
            for each in self._parties:
                each.fleet.walls = outcome.broken.append
        self._watch(outcome)
        silent = logging.root.manager.disable >= logging.CRITICAL  # to switch it is as slow as a short history
        if not silent:
            logging.disable(logging.CRITICAL)
        collecting = gc.isenabled()
        gc.disable()
        try:
            with virtual_machine(self._loop, self.seed):
                try:
                    self._loop.run_until(self._play())
                finally:
                    outcome.seconds = self._loop.now
                    outcome.left_running = [task for party in self._parties for task in party.list_left_running()]
                    self._end()
        finally:
            if not silent:
                logging.disable(logging.NOTSET)
            if collecting:
                gc.enable()
        outcome.faults, outcome.steps = self.stage.network.met, self._loop.steps
        outcome.host_faults = self._faults.met
        return outcome

    def _open_outcome(self, party: Party) -> Outcome:
        return Outcome(
            self.plan,
            self.history,
            party.fleet.provider,
            self._memory._records,
            party.purchases,
            self.scenario,
            dict(party.fleet.actors),
            party.replies,
        )

    def _watch(self, outcome: Outcome) -> None:
        """Look at every operation of the store, every message to a provider, and every answer."""
        watch = Watch(self._memory, self._loop, self._server.host, self.history, outcome.broken)
        self._server.records, requests = watch, ClientRequestLog(watch.watch_answer)
        self._server.on_claim, self._server.on_failed_claim = watch.watch_sent_claim, watch.watch_failed_claim
        self._server.on_claim_reply = watch.watch_claim_reply
        for party in self._parties:
            party.fleet.provider.on_send, party.fleet.requests = watch.watch_sending, requests

    async def _play(self) -> None:
        """Until everybody was told, everything is settled, and nothing is under way any more."""
        for party in self._parties:
            party.start()
        self._faults.start()
        pause: float | None = WAIT_SECONDS
        waiting = self._list_waiting()
        while pause is not None and self._loop.now < FAULTS_END_SECONDS + self.scenario.quiet:
            if waiting and not self._asleep:
                await self._wait_for(waiting, pause)
            else:
                await asyncio.sleep(pause)
            waiting = self._list_waiting()
            pause = self._find_pause(waiting)

    async def _wait_for(self, clients: list[asyncio.Task[None]], seconds: float) -> None:
        """As `asyncio.wait`, which also looks at what it is given, and sorts it: as much work as many a step."""
        waiter, left = self._loop.create_future(), len(clients)
        timer = self._loop.call_later(seconds, _release, waiter)

        def count_down(client: asyncio.Task[None]) -> None:
            nonlocal left
            left -= 1
            if not left:
                timer.cancel()
                _release(waiter)

        for client in clients:
            client.add_done_callback(count_down)
        await waiter
        for client in clients:
            client.remove_done_callback(count_down)

    def _list_waiting(self) -> list[asyncio.Task[None]]:
        return [client for party in self._parties for client in party.clients.list_waiting()]

    def _find_pause(self, waiting: list[asyncio.Task[None]]) -> float | None:
        """How long to wait before the next look; None: it is over. If all that is left is to wait, the hosts that would
        only look in vain sleep meanwhile."""
        landing = self.stage.network.find_next_landing()
        busy = [actor for party in self._parties for actor in party.list_busy_actors()]
        at_work = any(party.fleet.is_at_work() for party in self._parties)
        unsettled = [] if at_work and not busy else self._list_unsettled()
        if at_work or busy:
            pause = CALM_SECONDS
            if busy and not waiting and not unsettled and landing is None:
                pause = max(pause, min(getattr(actor, "next_act", 0.0) for actor in busy) - self._loop.now)
                if pause > CALM_SECONDS and self.plan.patient:
                    return self._put_to_sleep(pause, clients=False)
        elif not waiting and not unsettled:
            if landing is None:
                return None
            pause = landing - self._loop.now + CALM_SECONDS
            if self.plan.patient:
                return self._put_to_sleep(pause, clients=False)
        elif self.plan.patient and unsettled and all(record.state is State.UNCERTAIN for record in unsettled):
            then = min(self._parties[0].person.find_next_look(), inf if landing is None else landing)
            return self._put_to_sleep(then - self._loop.now + CALM_SECONDS, clients=True)
        else:
            pause = WAIT_SECONDS if waiting else CALM_SECONDS
        self._wake_up()
        return pause

    def _list_unsettled(self) -> list[Record]:
        return [record for record in self._memory._records.values() if is_unsettled(record)]

    def _put_to_sleep(self, pause: float, *, clients: bool) -> float:
        for host in [host for party in self._parties for host in party.list_waiting_hosts(clients=clients)]:
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
        hosts = self._loop.hosts
        self._loop.abandon(hosts)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with self._loop.run_nothing():
                    for host in reversed(hosts):  # the first is nobody's, and is given what killed code starts now
                        for task in host.tasks:
                            _close_quietly(task)
                        host.tasks.clear()
                for party in self._parties:
                    party.fleet.clear()
                read_type_hints.cache_clear()  # it keeps the functions of the last applications, and all they refer to
        finally:
            sys.unraisablehook = hook


def open_server(stage: SimulationStage) -> StoreServer:
    host, memory = stage.add_host("store"), MemoryStore()
    return ReplicatedServer(host, memory, lambda: stage.now) if stage.plan.is_lossy else StoreServer(host, memory)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


CLOSE_TRIES = 20
"""Each `await` in a `finally` block of killed code takes one."""


def _close_quietly(task: asyncio.Task[Any]) -> None:
    """End the code of a killed process here. What is only collected later fails in the middle of something else."""
    coroutine = task.get_coro()
    if task.done() or coroutine is None:
        return
    for _ in range(CLOSE_TRIES):
        try:
            coroutine.close()
        except RuntimeError:  # it awaits something more before it ends
            continue
        except BaseException:
            return
        return
