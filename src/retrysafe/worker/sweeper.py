"""The sweeper: marks guards whose lease has lapsed as `uncertain`, and emits an event for each.

It uses the owner's own fencing token, and the store checks the lease once more, so an owner that is alive is never
marked.
"""

from __future__ import annotations

from retrysafe.core.judge import LAPSED_UNSEEN
from retrysafe.core.ops import List, Suspect
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.worker.flows import RawOperation, ShouldStop, WorkerFlow, never_stop, owned_namespaces, run

PAGE_ROWS = 500


class Sweeper:
    def __init__(self, safe: RetrySafe) -> None:
        self._safe = safe

    def run_once(self, stopping: ShouldStop = never_stop) -> int:
        """Mark what has lapsed. Returns the number of records that became uncertain."""
        return run(self._safe, self.tick_flow(stopping))

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[int]:
        swept = 0
        for namespace in owned_namespaces(self._safe):
            cursor = ""
            while not stopping():
                # Not decrypted: a record with a missing key must become uncertain, too.
                page = yield RawOperation(List(namespace, State.CLAIMED, lapsed=True, cursor=cursor, limit=PAGE_ROWS))
                for record in page.records:
                    if record.on_lapse == "uncertain" and (
                        yield Suspect(record.id, record.fence, LAPSED_UNSEEN, lapsed_only=True)
                    ):
                        self._safe.events.emit("suspected", record.id, record.target, (record.kind, ""))
                        swept += 1
                cursor = page.cursor
                if not cursor:
                    break
        return swept
