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
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.plan import DECIDE_AFTER_SECONDS, LOOK_SECONDS
from retrysafe.testing.simulation.stage import Stage

PURCHASE = re.compile(r"p\d+")
"""The name of a purchase, as it stands in the keys or scopes of records."""


async def look_after(stage: Stage, fleet: Fleet, store_host: Host) -> None:
    """Look every five minutes, and decide about what has been quiet for long enough."""
    safe = fleet.open_safe()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for record in await list_uncertain(safe, fleet.namespace):
            if store_host.wall(stage.now) - record.started / 1e6 > DECIDE_AFTER_SECONDS:
                await resolve(stage, fleet, safe, record)


async def resolve(stage: Stage, fleet: Fleet, safe: RetrySafe, record: Record) -> None:
    about = PURCHASE.findall(f"{record.key} {record.scope}")[0]
    found = fleet.provider.find(about)
    refunded = fleet.provider.find(about, "refund")
    try:
        await safe.aresolve(
            record.id,
            happened=bool(found),
            # As our documents say: only an HTTP answer can be given by hand.
            answer=_answer_of(found, refunded) if found and record.kind != "function" else None,
            because="the provider's own list",
            attempt=record.attempt,
        )
    except (NotUncertain, RetrySafeError):
        return
    stage.note("person", "resolved", about, happened=bool(found))


async def list_uncertain(safe: RetrySafe, namespace: str) -> list[Record]:
    try:
        page = await safe.aexecute(List(namespace, State.UNCERTAIN, limit=100))
    except RetrySafeError:
        return []
    return list(page.records)


def _answer_of(found: list[dict[str, Any]], refunded: list[dict[str, Any]]) -> Answer:
    return Answer(402, b"refunded") if refunded else Answer(201, b'{"charge": %d}' % found[0]["number"])
