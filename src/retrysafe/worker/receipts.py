"""The clearer: receipts of local steps go from the user's database when their operation has ended, in bounded batches.

Nothing depends on it: a receipt that is there for longer than it need be only takes up room.
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
from retrysafe.operations.receipts import START, Named, delete_runs, is_orphan, list_named, may_go
from retrysafe.operations.tx_binding import TxBinding, bind_tx
from retrysafe.transactions.base import LockNotAvailable, SyncMode
from retrysafe.transactions.failures import ErrorClass, classify_error
from retrysafe.transactions.sources import find_adapter, find_source
from retrysafe.worker.flows import CallUserFunction, RawOperation, ShouldStop, Sleep, WorkerFlow, never_stop, run

BATCH = 100
"""Runs that are looked up, and whose receipts go, in one transaction."""
PAUSE = 0.025
NOTHING = LookupReply(None, 0)

_log = logging.getLogger("retrysafe.worker")


class Cleared(NamedTuple):
    """What one round did, in runs."""

    cleared: int
    orphaned: int = 0
    """Of which the store knows nothing: left alone."""


class Clearer:
    def __init__(self, safe: RetrySafe, batch: int = BATCH) -> None:
        self._safe = safe
        self._batch = batch

    def run_once(self, stopping: ShouldStop = never_stop, rest: Callable[[float], object] = time.sleep) -> Cleared:
        return run(self._safe, self.round(stopping), rest)

    def round(self, stopping: ShouldStop = never_stop) -> WorkerFlow[Cleared]:
        """Every run that is old enough is looked up once; those that may not go are not in the way of the others."""
        colour, ground = colour_of(self._safe), bind_tx(self._safe)
        done = Cleared(0)
        after: Named | None = START
        while after is not None and colour is not None and not stopping():
            try:
                after, done = yield from self._batch_after(after, done, colour, ground)
            except (SchemaMissing, LockNotAvailable, NestedTransaction) as error:
                _log.debug("receipts are cleared later: %s", error)
                break
            except Exception as error:
                if classify_error(error) is not ErrorClass.RETRYABLE:
                    raise
                break  # others were quicker; there is another round
            yield Sleep(PAUSE)
        return done

    def _batch_after(
        self, after: Named, done: Cleared, colour: SyncMode, ground: TxBinding
    ) -> WorkerFlow[tuple[Named | None, Cleared]]:
        found: list[Named] = yield self._inside(
            colour, lambda tx: list_named(tx.dialect, ground.names, after, self._batch)
        )
        ended, orphans = [], 0
        for each in found:
            # As it is stored: whether its contents can be opened does not matter.
            reply = (yield RawOperation(Lookup(each.record))) if each.record else NOTHING
            if may_go(reply.record, each.run, reply.now):
                ended.append(each.run)
            orphans += is_orphan(reply.record, each.run)
        if ended:
            yield self._inside(colour, lambda tx: delete_runs(tx.dialect, ground.names, ended))
        more = found[-1] if len(found) == self._batch else None
        return more, Cleared(done.cleared + len(ended), done.orphaned + orphans)

    def _inside(self, colour: SyncMode, story: Callable[[Any], Any]) -> CallUserFunction:
        """A transaction of the user's, with nothing in it but this."""
        if colour == "sync":
            return CallUserFunction(lambda: self._transact(story), is_async=False)
        return CallUserFunction(lambda: self._atransact(story), is_async=True)

    def _transact(self, story: Callable[[Any], Any]) -> Any:
        with find_source(self._safe.tx, "sync").begin() as tx:
            send: Callable[[Any], Any] = tx.send
            return drive.run(story(tx), send)

    async def _atransact(self, story: Callable[[Any], Any]) -> Any:
        async with find_source(self._safe.tx, "async").begin() as tx:
            send: Callable[[Any], Any] = tx.send
            return await drive.arun(story(tx), send)


def has_receipts(safe: RetrySafe) -> bool:
    """Whether local steps leave receipts that this worker may clear away."""
    return safe.forms == "current" and bind_tx(safe).kind == "elsewhere"


def colour_of(safe: RetrySafe) -> SyncMode | None:
    """How transactions on the user's database are opened. None where this code has no local step that would leave a
    receipt (in MongoDB none can), or holds one single connection, which somebody else may be using at this moment."""
    local = [each for each in safe.operations.values() if any(step.kind == "local" for step in each.steps.values())]
    if not local:
        return None
    adapter = find_adapter(safe.tx, "sync")
    if adapter is not None:
        return None if adapter.closes or adapter.module == "on_pymongo" else adapter.sync_mode
    return "async" if all(each.is_async for each in local) else "sync"
