"""The sweeper: guards whose owner went silent become `uncertain`, with an event, so that a person hears of it.

It uses the owner's own fence and asks the store to judge the lease once more: an owner that is alive is never accused.
"""

from __future__ import annotations

from retrysafe.core.judge import LAPSED_UNSEEN
from retrysafe.core.ops import List, Suspect
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.worker.flows import RawOperation, ShouldStop, WorkerFlow, never_stop, run
from retrysafe.worker.namespaces import owned_namespaces

PAGE_ROWS = 500


class Sweeper:
    def __init__(self, safe: RetrySafe) -> None:
        self._safe = safe

    def run_once(self, stopping: ShouldStop = never_stop) -> int:
        """How many became uncertain."""
        return run(self._safe, self.tick_flow(stopping))

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[int]:
        swept = 0
        for namespace in owned_namespaces(self._safe):
            cursor = ""
            while not stopping():
                # As it is stored: whether its contents can be opened does not matter, a person has to hear of it.
                page = yield RawOperation(List(namespace, State.CLAIMED, lapsed=True, cursor=cursor, limit=PAGE_ROWS))
                for record in page.records:
                    if record.on_lapse == "uncertain" and (
                        yield Suspect(record.id, record.fence, LAPSED_UNSEEN, lapsed_only=True)
                    ):
                        self._safe.events.emit("suspected", record.id, record.target)
                        swept += 1
                cursor = page.cursor
                if not cursor:
                    break
        return swept
