"""When what goes wrong with whole hosts, and for how long. What goes wrong with messages is in `network.py`."""

from __future__ import annotations

from collections.abc import Callable

from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.plan import FAULTS_END_SECONDS
from retrysafe.testing.simulation.stage import Stage
from retrysafe.testing.simulation.store import StoreServer


class FaultSchedule:
    """The faults of one history's hosts, as its plan counts them."""

    def __init__(self, stage: Stage, fleet: Fleet, server: StoreServer) -> None:
        self._stage, self._fleet, self._server = stage, fleet, server

    def start(self) -> None:
        plan = self._stage.plan
        self._schedule("kill", plan.crashes, 20.0, self._fleet.kill)
        self._schedule("freeze", plan.freezes, 300.0, self._fleet.freeze)
        self._schedule("cut", plan.partitions, 200.0, self._cut)
        self._schedule("restart store", plan.store_restarts, 30.0, self._restart_store)
        self._stage.loop.call_at_true_time(FAULTS_END_SECONDS, self._stop)

    def _schedule(self, name: str, count: int, most_seconds: float, fault: Callable[[str, float], None]) -> None:
        for number in range(count):
            chance = self._stage.draw(f"{name} {number}")
            # Most of what can go wrong does so while something is under way: soon after the start.
            when = chance.uniform(0.0, chance.choice((6.0, 120.0, FAULTS_END_SECONDS)))
            host = chance.choice(self._fleet.names)
            self._stage.loop.call_at_true_time(when, fault, host, chance.uniform(0.5, most_seconds))

    def _cut(self, name: str, seconds: float) -> None:
        other = self._server.host if seconds < 100.0 else self._fleet.provider.host
        self._stage.note(name, "cut off", other=other.name, seconds=round(seconds, 1))
        self._stage.network.part(name, other.name, seconds)

    def _restart_store(self, _: str, seconds: float) -> None:
        self._server.is_down = True
        self._stage.note("store", "down", seconds=round(seconds, 1))
        self._stage.loop.call_at_true_time(self._stage.now + seconds, self._bring_store_back)

    def _bring_store_back(self) -> None:
        self._server.is_down = False
        self._stage.note("store", "up")

    def _stop(self) -> None:
        self._stage.network.heal()
        self._stage.note("network", "healed")
