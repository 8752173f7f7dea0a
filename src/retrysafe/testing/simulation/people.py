"""A person who looks at what is uncertain, asks the provider, and decides."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from retrysafe.core.ops import List
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotUncertain, RetrySafeError
from retrysafe.testing.simulation.application import AppHost
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.plan import DECIDE_AFTER_SECONDS, LOOK_SECONDS
from retrysafe.testing.simulation.scenario import Decide
from retrysafe.testing.simulation.stage import Stage

PURCHASE = re.compile(r"p\d+")
"""The name of a purchase, as it stands in the keys of records."""


class Person:
    """Looks every five minutes, and decides about what has been quiet for long enough."""

    def __init__(self, stage: Stage, fleet: Fleet, store_host: Host, decide: Decide | None = None) -> None:
        self._decide = decide
        self.host = stage.add_host("person")
        self._stage, self._fleet, self._store_host = stage, fleet, store_host

    def start(self) -> None:
        self.host.run_inside(self._stage.loop.create_task, self._look_after())

    def find_next_look(self) -> float:
        """The true time of the next look."""
        return (self._stage.now // LOOK_SECONDS + 1) * LOOK_SECONDS

    async def _look_after(self) -> None:
        node = self._fleet.open_application(self.host) if self._decide is not None else None
        safe = self._fleet.open_safe() if node is None else node.safe
        while True:
            await asyncio.sleep(self.find_next_look() - self._stage.now)
            for record in await list_uncertain(safe, self._fleet.namespace):
                if self._store_host.wall(self._stage.now) - record.started / 1e6 > DECIDE_AFTER_SECONDS:
                    await (self._resolve(safe, record) if node is None else self._act(node, record))

    async def _act(self, node: AppHost, record: Record) -> None:
        assert self._decide is not None
        try:
            done = await self._decide(node, record)
        except (RetrySafeError, OSError) as error:
            done = f"failed: {type(error).__name__}"
        if done:
            self._stage.note("person", done, PURCHASE.findall(record.key)[0])

    async def _resolve(self, safe: RetrySafe, record: Record) -> None:
        about = PURCHASE.findall(record.key)[0]
        found = self._fleet.provider.find(about)
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
            return
        self._stage.note("person", "resolved", about, happened=bool(found))


async def list_uncertain(safe: RetrySafe, namespace: str) -> list[Record]:
    try:
        page = await safe.aexecute(List(namespace, State.UNCERTAIN, limit=100))
    except RetrySafeError:
        return []
    return list(page.records)


def _answer_of(found: list[dict[str, Any]]) -> Answer:
    return Answer(201, b'{"charge": %d}' % found[0]["number"])
