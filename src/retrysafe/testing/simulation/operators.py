"""A person who cannot wait: resumes and undoes operations while their owners, the worker and the clients are at it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.errors import RetrySafeError
from retrysafe.testing.simulation.application import AppHost
from retrysafe.testing.simulation.stage import SimulationStage

if TYPE_CHECKING:
    from retrysafe.testing.simulation.fleet import Fleet
    from retrysafe.testing.simulation.outcome import Outcome

UNDOABLE = ("rows_saga",)
"""Operations without a call that could still be under way: these are undone at any time, whoever owns them."""


class ImpatientOperator:
    """`acts`: when, in seconds of true time."""

    name = "operator"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("operator")
        chance = stage.draw("operator")
        span = chance.choice((6.0, 30.0, 120.0))
        self.acts = sorted(chance.uniform(0.0, span) for _ in range(chance.choice((0, 1, 4))))
        self.errors: list[str] = []
        """Errors that are none of ours: nobody should have to know those."""
        self.undone: set[str] = set()
        """The keys that it asked to have undone."""
        self._chance, self._stage = chance, stage
        self._left = len(self.acts)

    def start(self, fleet: Fleet) -> None:
        if self.acts:
            self.host.run_inside(self._stage.loop.create_task, self._act_at_times(fleet))

    def is_settled(self) -> bool:
        return self._left == 0 or self._stage.now < self.acts[0]

    async def _act_at_times(self, fleet: Fleet) -> None:
        for when in self.acts:
            await asyncio.sleep(max(0.0, when - self._stage.now))
            try:
                await self._act(fleet.open_application(self.host), fleet.namespace)
            except (RetrySafeError, OSError) as error:
                self._stage.note(self.host.name, "refused", why=type(error).__name__)
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            self._left -= 1

    async def _act(self, node: AppHost, namespace: str) -> None:
        page = await node.safe.aexecute(List(namespace, limit=10))
        open_ = [record for record in page.records if record.answer is None and record.target in node.safe.operations]
        if not open_:
            return
        record: Record = self._chance.choice(open_)
        operation = node.safe.operations[record.target]
        if operation.name in UNDOABLE and self._chance.random() < 0.6:
            self.undone.add(record.key)
            self._stage.note(self.host.name, "undoes", record.key[4:])
            await operation.undo_id(record.id, because="the customer cancelled")
        else:
            self._stage.note(self.host.name, "resumes", record.key[4:])
            await operation.resume_id(record.id)


def check_operator(outcome: Outcome) -> Iterator[str]:
    """A person who decides gets an answer, or one of our errors."""
    operator: ImpatientOperator = outcome.actors["operator"]
    for error in operator.errors:
        yield f"S31 clear errors: an operator got {error}"
