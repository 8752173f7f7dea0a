"""The receipt reaper: deletes receipts of local steps from the user's database after the end of their operation.

It works in bounded batches. Correctness does not depend on it: a receipt that stays longer only takes up space.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.ops import Lookup, LookupReply
from retrysafe.engine import drive
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NestedTransaction, SchemaMissing
from retrysafe.operations.receipts import (
    BEFORE_ALL,
    NamedRun,
    can_delete_receipts,
    delete_runs,
    is_orphan,
    list_named_runs,
)
from retrysafe.stores.base import LockNotAvailable
from retrysafe.transactions.base import SyncMode
from retrysafe.transactions.binding import TxBinding, bind_tx
from retrysafe.transactions.failures import ErrorClass, classify_error
from retrysafe.transactions.sources import find_adapter, find_source
from retrysafe.worker.flows import CallUserFunction, RawOperation, ShouldStop, Sleep, WorkerFlow, never_stop, run

BATCH_RUNS = 100
"""Runs that are looked up, and whose receipts are deleted, in one transaction."""
PAUSE_SECONDS = 0.025
NO_RECORD = LookupReply(None, 0)

_log = logging.getLogger("retrysafe.worker")


class ReceiptReaperCounts(NamedTuple):
    """The runs that one round processed."""

    cleared: int
    orphaned: int = 0
    """Runs that the store does not have: left alone."""


class ReceiptReaper:
    def __init__(self, safe: RetrySafe, batch: int = BATCH_RUNS) -> None:
        self._safe = safe
        self._batch = batch

    def run_once(
        self, stopping: ShouldStop = never_stop, sleep: Callable[[float], object] = time.sleep
    ) -> ReceiptReaperCounts:
        """One round. `sleep` is called between two batches."""
        return run(self._safe, self.tick_flow(stopping), sleep)

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[ReceiptReaperCounts]:
        """Look up every run that is old enough, once. Runs that must stay do not block the ones after them."""
        mode, binding = find_tx_mode(self._safe), bind_tx(self._safe)
        counts = ReceiptReaperCounts(0)
        after: NamedRun | None = BEFORE_ALL
        while after is not None and mode is not None and not stopping():
            try:
                after, counts = yield from self._reap_batch(after, counts, mode, binding)
            except (SchemaMissing, LockNotAvailable, NestedTransaction) as error:
                _log.debug("receipts are deleted later: %s", error)
                break
            except Exception as error:
                if classify_error(error) is not ErrorClass.RETRYABLE:
                    raise
                break  # another transaction came first; the next round tries again
            yield Sleep(PAUSE_SECONDS)
        return counts

    def _reap_batch(
        self, after: NamedRun, counts: ReceiptReaperCounts, mode: SyncMode, binding: TxBinding
    ) -> WorkerFlow[tuple[NamedRun | None, ReceiptReaperCounts]]:
        """One batch. Returns the cursor of the next batch (None: there is none) and the counts so far."""
        found: list[NamedRun] = yield self._in_transaction(
            mode, lambda tx: list_named_runs(tx.dialect, binding.names, after, self._batch)
        )
        ended, orphans = [], 0
        for each in found:
            # Not decrypted: the contents of the record do not matter.
            reply = (yield RawOperation(Lookup(each.record))) if each.record else NO_RECORD
            if can_delete_receipts(reply.record, each.run, reply.now):
                ended.append(each.run)
            orphans += is_orphan(reply.record, each.run)
        if ended:
            yield self._in_transaction(mode, lambda tx: delete_runs(tx.dialect, binding.names, ended))
        cursor = found[-1] if len(found) == self._batch else None
        return cursor, ReceiptReaperCounts(counts.cleared + len(ended), counts.orphaned + orphans)

    def _in_transaction(self, mode: SyncMode, flow: Callable[[Any], Any]) -> CallUserFunction:
        """Run a flow in a transaction of its own on the user's database."""
        if mode == "sync":
            return CallUserFunction(lambda: self._transact(flow), is_async=False)
        return CallUserFunction(lambda: self._atransact(flow), is_async=True)

    def _transact(self, flow: Callable[[Any], Any]) -> Any:
        with find_source(self._safe.tx, "sync").begin() as tx:
            send: Callable[[Any], Any] = tx.send
            return drive.run(flow(tx), send)

    async def _atransact(self, flow: Callable[[Any], Any]) -> Any:
        async with find_source(self._safe.tx, "async").begin() as tx:
            send: Callable[[Any], Any] = tx.send
            return await drive.arun(flow(tx), send)


def has_receipts(safe: RetrySafe) -> bool:
    """True if local steps write receipts that this worker may delete."""
    return safe.forms == "current" and bind_tx(safe).kind == "elsewhere"


def find_tx_mode(safe: RetrySafe) -> SyncMode | None:
    """Whether transactions on the user's database are sync or async. None if this code has no local step that writes
    receipts (in MongoDB none does), or if `tx` is one single connection, which may be in use at this moment."""
    local = [each for each in safe.operations.values() if any(step.kind == "local" for step in each.steps.values())]
    if not local:
        return None
    adapter = find_adapter(safe.tx, "sync")
    if adapter is not None:
        return None if adapter.closes or adapter.module == "on_pymongo" else adapter.sync_mode
    return "async" if all(each.is_async for each in local) else "sync"
