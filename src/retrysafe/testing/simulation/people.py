"""A person who looks at what is uncertain, asks the provider, and decides."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from retrysafe.core.ops import List
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotUncertain, RetrySafeError
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.plan import DECIDE_AFTER_SECONDS, LOOK_SECONDS
from retrysafe.testing.simulation.stage import Stage

PURCHASE = re.compile(r"p\d+")
"""The name of a purchase, as it stands in the keys of records."""


class Person:
    """Looks every five minutes, and decides about what has been quiet for long enough."""

    def __init__(self, stage: Stage, fleet: Fleet, store_host: Host) -> None:
        self.host = stage.add_host("person")
        self._stage, self._fleet, self._store_host = stage, fleet, store_host

    def start(self) -> None:
        self.host.run_inside(self._stage.loop.create_task, self._look_after())

    def find_next_look(self) -> float:
        """The true time of the next look."""
        return (self._stage.now // LOOK_SECONDS + 1) * LOOK_SECONDS

    async def _look_after(self) -> None:
        safe = self._fleet.open_safe()
        while True:
            await asyncio.sleep(self.find_next_look() - self._stage.now)
            for record in await list_uncertain(safe, self._fleet.namespace):
                if self._store_host.wall(self._stage.now) - record.started / 1e6 > DECIDE_AFTER_SECONDS:
                    await self._resolve(safe, record)

    async def _resolve(self, safe: RetrySafe, record: Record) -> None:
        about = PURCHASE.findall(record.key)[0]
        charges = self._fleet.provider.find(about)
        if charges and is_undoing(record) and not self._fleet.provider.find(about, "refund"):
            self._fleet.provider.refund_by_hand(about)
        refunded = bool(self._fleet.provider.find(about, "refund"))
        try:
            await safe.aresolve(
                record.id,
                happened=bool(charges),
                # As our documents say: only an HTTP answer can be given by hand.
                answer=_answer_of(charges, refunded=refunded) if charges and record.kind != "function" else None,
                because="the provider's own list",
                attempt=record.attempt,
            )
        except (NotUncertain, RetrySafeError):
            return
        self._stage.note("person", "resolved", about, happened=bool(charges))


async def list_uncertain(safe: RetrySafe, namespace: str) -> list[Record]:
    try:
        page = await safe.aexecute(List(namespace, State.UNCERTAIN, limit=100))
    except RetrySafeError:
        return []
    return list(page.records)


def is_undoing(record: Record) -> bool:
    """Whether an operation was being undone: what is left of it is to be undone by hand."""
    return bool(record.progress) and json.loads(record.progress).get("undoing") is not None


def _answer_of(charges: list[dict[str, Any]], *, refunded: bool) -> Answer:
    return Answer(402 if refunded else 201, b'{"charge": %d}' % charges[0]["number"])
