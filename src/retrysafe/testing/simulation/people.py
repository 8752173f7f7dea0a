"""A person who looks at what is uncertain, asks the provider, and decides."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from retrysafe.core.ops import List
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotUncertain, RetrySafeError
from retrysafe.operations.journal import OperationJournal
from retrysafe.testing.simulation.application import AppHost
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.plan import DECIDE_AFTER_SECONDS, LOOK_SECONDS
from retrysafe.testing.simulation.scenario import Decide
from retrysafe.testing.simulation.stage import SimulationStage


class Person:
    """Looks every five minutes, and decides about what has been quiet for long enough."""

    def __init__(
        self, stage: SimulationStage, fleet: Fleet, store_host: Host, decide: Decide | None = None, name: str = "person"
    ) -> None:
        self._decide = decide
        self.host = stage.add_host(name)
        self._stage, self._fleet, self._store_host = stage, fleet, store_host

    def start(self) -> None:
        self.host.run_inside(self._stage.loop.create_task, self._look_after())

    def find_next_look(self) -> float:
        """The true time of the next look."""
        # A clock that drifts wakes the person a little early: that look counts as the one that was due.
        return (round(self._stage.now / LOOK_SECONDS - 0.49) + 1) * LOOK_SECONDS

    async def _look_after(self) -> None:
        node = self._fleet.open_application(self.host) if self._decide is not None else None
        safe = self._fleet.open_safe() if node is None else node.safe
        while True:
            await asyncio.sleep(self.find_next_look() - self._stage.now)
            if await self._has_refused(safe):
                self._deploy_other_version()
            for record in await list_records(safe, List(self._fleet.namespace, State.UNCERTAIN, limit=100)):
                if self._store_host.wall(self._stage.now) - record.started / 1e6 > DECIDE_AFTER_SECONDS:
                    await (self._resolve(safe, record) if node is None else self._act(node, record))

    async def _has_refused(self, safe: RetrySafe) -> bool:
        """Whether the code of today refuses to go on with what other code began, or to answer for it: then the other
        code has to run once more."""
        if not self._fleet.is_deployed_anew:
            return False
        complaints, self._fleet.complaints = self._fleet.complaints, 0
        if complaints:
            return True
        found = await list_records(safe, List(self._fleet.namespace, resting=True, limit=100))
        return any("OperationChanged" in record.note or "begun by other code" in record.note for record in found)

    def _deploy_other_version(self) -> None:
        versions = self._fleet.versions
        other = sum(set(self._stage.plan.versions)) - versions[self._fleet.apps[0]]
        for name in versions:
            self._fleet.deploy(name, other, 1.0)

    async def _act(self, node: AppHost, record: Record) -> None:
        assert self._decide is not None
        try:
            done = await self._decide(node, record)
        except (RetrySafeError, OSError) as error:
            done = f"failed: {type(error).__name__}"
        if done:
            self._stage.note("person", done, self._fleet.find_purchase(record.key, record.scope))

    async def _resolve(self, safe: RetrySafe, record: Record) -> None:
        about = self._fleet.find_purchase(record.key, record.scope)
        charges = self._fleet.provider.find(about)
        if charges and is_undoing(record) and not self._fleet.provider.find(about, "refund"):
            self._fleet.provider.refund_by_hand(about)
        refunded = bool(self._fleet.provider.find(about, "refund"))
        # An undo that is too old to be sent again is not tried again, and its message says so: "it did not happen"
        # would lead back here for ever.
        happened = bool(charges) or is_undo_too_old(record)
        try:
            await safe.aresolve(
                record.id,
                happened=happened,
                # As our documents say: only an HTTP answer can be given by hand.
                answer=_answer_of(charges, refunded=refunded) if happened and record.kind != "function" else None,
                because="the provider's own list",
                attempt=record.attempt,
            )
        except (NotUncertain, RetrySafeError):
            self._stage.note("person", "resolved unheard", about, happened=happened)
            return
        self._stage.note("person", "resolved", about, happened=happened)


async def list_records(safe: RetrySafe, query: List) -> list[Record]:
    try:
        page = await safe.aexecute(query)
    except RetrySafeError:
        return []
    return list(page.records)


def is_undoing(record: Record) -> bool:
    """Whether an operation was being undone: what is left of it is to be undone by hand."""
    return bool(record.progress) and json.loads(record.progress).get("undoing") is not None


def is_undo_too_old(record: Record) -> bool:
    """Whether an undo is stuck because the other system may have forgotten its key."""
    return is_undoing(record) and any(
        entry.state == "stuck" and "key_life" in entry.error
        for entry in OperationJournal.decode(record.progress).entries
    )


def _answer_of(charges: list[dict[str, Any]], *, refunded: bool) -> Answer:
    """What the run is to answer from now on: the charge, or that there is none any more."""
    if not charges:
        return Answer(402, b"{}")
    return Answer(402 if refunded else 201, b'{"charge": %d}' % charges[0]["number"])
