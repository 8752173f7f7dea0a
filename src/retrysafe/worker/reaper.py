"""The reaper: deletes expired records, in bounded batches with pauses, so that claims are not slowed down.

Correctness does not depend on it: an expired record counts as missing, whether it is still stored or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from retrysafe.core.ops import Reap
from retrysafe.engine.safe import RetrySafe
from retrysafe.worker.flows import ShouldStop, Sleep, WorkerFlow, never_stop, owned_namespaces, run

BATCH_ROWS = 100
PAUSE_SECONDS = 0.01
"""A claim that meets a batch waits for the processor behind it, so batches are short: on PostgreSQL 0.8 ms of the
server's time for 100 rows (2.4 ms for 250 before decision 83). Each batch has a cost of its own, so smaller ones only
cost more. These are some 8,500 rows a second, or 700 million a day."""


class Reaper:
    def __init__(self, safe: RetrySafe, batch: int = BATCH_ROWS) -> None:
        self._safe = safe
        self._batch = batch

    def run_once(self, stopping: ShouldStop = never_stop, sleep: Callable[[float], object] = time.sleep) -> int:
        """Delete what is expired. Returns the number of records. `sleep` is called between two batches."""
        return run(self._safe, self.tick_flow(stopping), sleep)

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[int]:
        deleted = 0
        for namespace in owned_namespaces(self._safe):
            while not stopping():
                reaped = yield Reap(self._batch, namespace=namespace)
                deleted += reaped
                if reaped < self._batch:
                    break
                yield Sleep(PAUSE_SECONDS)
        return deleted
