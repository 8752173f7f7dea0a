"""When what goes wrong with whole hosts and with the store, and for how long. Messages have their own faults:
`network.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.plan import FAULTS_END_SECONDS
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.store import StoreServer

Fault = Callable[[Random], None]

MAX_DOWN_SECONDS = 20.0
MAX_FROZEN_SECONDS = 300.0
MAX_CUT_SECONDS = 200.0
MAX_STORE_FAULT_SECONDS = 60.0
MAX_SLOW_SECONDS = 90.0


class FaultSchedule:
    """The faults of one history, as its plan counts them. Each has a source of chance of its own."""

    def __init__(self, stage: SimulationStage, fleets: list[Fleet], server: StoreServer) -> None:
        self._stage, self._fleets, self._server = stage, fleets, server
        self.met: dict[str, int] = {}
        """How often each fault was met."""

    def start(self) -> None:
        plan = self._stage.plan
        self._schedule("kill", plan.crashes, self._kill)
        self._schedule("freeze", plan.freezes, self._freeze)
        self._schedule("suspend", plan.suspends, self._suspend)
        self._schedule("clock jump", plan.clock_jumps, self._jump)
        self._schedule("slow host", plan.slow_hosts, self._slow_down)
        self._schedule("cut", plan.partitions, self._cut)
        self._schedule("store restart", plan.store_restarts, self._restart_store)
        self._schedule("store fault", plan.store_faults, self._break_store)
        if self._fleets[0].is_deployed_anew:
            self._schedule("deployment", 1, self._deploy)
        if plan.is_lossy:
            self._schedule("failover", plan.failovers, self._fail_over)
        self._stage.loop.call_at_true_time(FAULTS_END_SECONDS, self._stop)

    def _schedule(self, name: str, count: int, fault: Fault) -> None:
        for number in range(count):
            chance = self._stage.draw(f"{name} {number}")
            # Most of what can go wrong does so while something is under way: soon after the start.
            when = chance.uniform(0.0, chance.choice((6.0, 120.0, FAULTS_END_SECONDS)))
            self._stage.loop.call_at_true_time(when, self._meet, name, fault, chance)

    def _meet(self, name: str, fault: Fault, chance: Random) -> None:
        if not self._stage.network.healed:
            self.met[name] = self.met.get(name, 0) + 1
            fault(chance)

    # Hosts -------------------------------------------------------------------------------------------

    def _choose_process(self, chance: Random) -> tuple[Fleet, str]:
        fleet = chance.choice(self._fleets)
        return fleet, chance.choice(fleet.names)

    def _choose_host(self, chance: Random) -> Host | None:
        """A process of an application that is running."""
        fleet, name = self._choose_process(chance)
        node = fleet.nodes.get(name)
        return None if node is None or not node.host.alive else node.host

    def _kill(self, chance: Random) -> None:
        fleet, name = self._choose_process(chance)
        fleet.kill(name, chance.uniform(0.5, MAX_DOWN_SECONDS))

    def _deploy(self, chance: Random) -> None:
        """One process after the other gets another version of the application."""
        seconds = chance.choice((1.0, 30.0, 200.0))
        for fleet in self._fleets:
            for name in fleet.names:
                when = self._stage.now + chance.uniform(0.0, seconds)
                self._stage.loop.call_at_true_time(when, fleet.deploy, name, self._stage.plan.versions[1], 1.0)

    def _freeze(self, chance: Random) -> None:
        host, seconds = self._choose_host(chance), chance.uniform(0.5, MAX_FROZEN_SECONDS)
        if host is not None:
            self._stage.note(host.name, "frozen", seconds=round(seconds, 1))
            self._stage.loop.freeze(host, self._stage.now + seconds)

    def _suspend(self, chance: Random) -> None:
        """The machine sleeps: its monotonic clock stands still, its wall clock does not."""
        host, seconds = self._choose_host(chance), chance.uniform(0.5, MAX_FROZEN_SECONDS)
        if host is not None:
            self._stage.note(host.name, "suspended", seconds=round(seconds, 1))
            self._stage.loop.suspend(host, self._stage.now + seconds)

    def _jump(self, chance: Random) -> None:
        """A wall clock is set, forwards or back."""
        host, seconds = self._choose_host(chance), chance.choice((-3600.0, -60.0, -1.0, 1.0, 60.0, 3600.0))
        if host is not None:
            self._stage.note(host.name, "clock set", seconds=seconds)
            host.skew += seconds

    def _slow_down(self, chance: Random) -> None:
        """Each callback takes long: a machine without memory, a loop that is blocked by other work."""
        host, lag = self._choose_host(chance), chance.choice((0.05, 0.5, 5.0))
        seconds = chance.uniform(1.0, MAX_SLOW_SECONDS)
        if host is not None:
            self._stage.note(host.name, "slow host", lag=lag, seconds=round(seconds, 1))
            host.lag = lag
            self._stage.loop.call_at_true_time(self._stage.now + seconds, self._speed_up, host)

    @staticmethod
    def _speed_up(host: Host) -> None:
        host.lag = 0.0

    def _cut(self, chance: Random) -> None:
        """Any two hosts."""
        fleet, name = self._choose_process(chance)
        others = [self._server.host.name, fleet.provider.host.name, *fleet.clients, *(actor for actor in fleet.actors)]
        other = chance.choice((self._server.host.name, chance.choice(others)))
        seconds = chance.uniform(0.5, MAX_CUT_SECONDS)
        self._stage.note(name, "cut off", other=other, seconds=round(seconds, 1))
        self._stage.network.part(name, other, seconds)

    # The store ---------------------------------------------------------------------------------------

    def _restart_store(self, chance: Random) -> None:
        self._set_store("is_down", "down", chance.uniform(0.5, MAX_STORE_FAULT_SECONDS / 2))

    def _break_store(self, chance: Random) -> None:
        """The store works, and refuses: a primary that was demoted, a full disk, a row that a stranger has locked."""
        seconds = chance.uniform(0.5, MAX_STORE_FAULT_SECONDS)
        kind = chance.choice(("is_read_only", "is_full", "lock"))
        if kind != "lock":
            self._set_store(kind, kind.removeprefix("is_").replace("_", "-"), seconds)
        elif locked := self._server.choose_lock(chance):
            self._stage.note("store", "row locked", seconds=round(seconds, 1))
            self._stage.loop.call_at_true_time(self._stage.now + seconds, self._server.unlock, locked)

    def _set_store(self, fault: str, name: str, seconds: float) -> None:
        setattr(self._server, fault, True)
        self._stage.note("store", name, seconds=round(seconds, 1))
        self._stage.loop.call_at_true_time(self._stage.now + seconds, self._repair_store, fault, name)

    def _repair_store(self, fault: str, name: str) -> None:
        if getattr(self._server, fault):
            setattr(self._server, fault, False)
            self._stage.note("store", f"no longer {name}")

    def _fail_over(self, chance: Random) -> None:
        """Another primary takes over. What was not replicated yet is gone, although it was acknowledged."""
        lost = self._server.fail_over(chance.uniform(0.0, 2.0))
        self._stage.note("store", "failed over", lost=lost)

    def _stop(self) -> None:
        self._stage.network.heal()
        for fault in ("is_down", "is_read_only", "is_full"):
            setattr(self._server, fault, False)
        self._server.locked.clear()
        for host in self._stage.loop.hosts:
            host.lag = 0.0
        self._stage.note("network", "healed")
