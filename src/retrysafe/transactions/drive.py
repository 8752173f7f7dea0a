"""Carrying out what the flow asks for: one stage per colour, with at most one open transaction on it."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.engine.effects import FlowPause, NotifyWaiters, NotifyWorker
from retrysafe.engine.resending import CANCEL_TIMEOUT_SECONDS
from retrysafe.stores.mongo.plans import Command
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.effects import AskCommitted, Begin, End, Flush, Plainly, TxBody, TxEffect, TxFlow

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

R = TypeVar("R")
_log = logging.getLogger("retrysafe")


class RollbackSignal(Exception):
    """Thrown into a transaction's block to undo it."""


class TxDriver:
    """Threads. `tx` is the open transaction, if there is one."""

    def __init__(self, safe: RetrySafe, source: TxSource) -> None:
        self._safe = safe
        self._source = source
        self._block: AbstractContextManager[Tx] | None = None
        self.tx: Tx | None = None

    def perform(self, effect: TxEffect) -> Any:
        if isinstance(effect, Statement | Command):
            return self._require_tx().send(effect)
        if isinstance(effect, TxBody):
            with effect.staging.collect_on(self._require_tx().handle):
                return effect.function(self._require_tx().handle)
        if isinstance(effect, Begin):
            return self._begin()
        if isinstance(effect, End):
            return self._commit() if effect.how == "commit" else self.close()
        if isinstance(effect, Flush):
            return self._require_tx().flush()
        if isinstance(effect, FlowPause):
            return time.sleep(effect.seconds)
        if isinstance(effect, AskCommitted):
            return getattr(self.tx, "committed", None)
        if isinstance(effect, Plainly):
            return send_plainly(self._require_tx())(effect.statement)
        if isinstance(effect, NotifyWorker):
            bell = self._safe.worker_notifier
            return self._safe.performer()(NotifyWaiters(bell.id)) if bell.wake_local() else None
        return self._safe.execute(effect)

    def close(self) -> None:
        """Roll back what is open. A connection that is gone has done so itself."""
        block, self._block, self.tx = self._block, None, None
        if block is None:
            return
        undo = RollbackSignal()
        try:
            block.__exit__(RollbackSignal, undo, None)
        except Exception as error:
            if error is not undo:
                _log.debug("rolling back failed: %s", error)

    def _require_tx(self) -> Tx:
        assert self.tx is not None, "a transaction is open"
        return self.tx

    def _begin(self) -> Any:
        block = self._source.begin()
        self.tx = block.__enter__()
        self._block = block
        return self.tx.dialect

    def _commit(self) -> None:
        block, self._block, self.tx = self._block, None, None
        assert block is not None, "a transaction is open"
        block.__exit__(None, None, None)


class AsyncTxDriver:
    """Event loops. An end is carried through a cancellation: no commit is left half way."""

    def __init__(self, safe: RetrySafe, source: AsyncTxSource) -> None:
        self._safe = safe
        self._source = source
        self._block: AbstractAsyncContextManager[AsyncTx] | None = None
        self.tx: AsyncTx | None = None

    async def perform(self, effect: TxEffect) -> Any:
        if isinstance(effect, Statement | Command):
            return await self._require_tx().send(effect)
        if isinstance(effect, TxBody):
            with effect.staging.collect_on(self._require_tx().handle):
                result = effect.function(self._require_tx().handle)
                return await result if inspect.isawaitable(result) else result
        if isinstance(effect, Begin):
            return await self._begin()
        if isinstance(effect, End):
            return await (self._commit() if effect.how == "commit" else self.close())
        if isinstance(effect, Flush):
            return await self._require_tx().flush()
        if isinstance(effect, FlowPause):
            return await _sleep(effect.seconds)
        if isinstance(effect, AskCommitted):
            return getattr(self.tx, "committed", None)
        if isinstance(effect, Plainly):
            return await send_plainly(self._require_tx())(effect.statement)
        if isinstance(effect, NotifyWorker):
            bell = self._safe.worker_notifier
            return await self._safe.async_performer()(NotifyWaiters(bell.id)) if bell.wake_local() else None
        return await self._safe.aexecute(effect)

    async def close(self) -> None:
        block, self._block, self.tx = self._block, None, None
        if block is None:
            return
        undo = RollbackSignal()
        try:
            await wait_through_cancels(block.__aexit__(RollbackSignal, undo, None))
        except Exception as error:
            if error is not undo:
                _log.debug("rolling back failed: %s", error)

    def _require_tx(self) -> AsyncTx:
        assert self.tx is not None, "a transaction is open"
        return self.tx

    async def _begin(self) -> Any:
        block = self._source.begin()
        self.tx = await block.__aenter__()
        self._block = block
        return self.tx.dialect

    async def _commit(self) -> None:
        block, self._block, self.tx = self._block, None, None
        assert block is not None, "a transaction is open"
        await wait_through_cancels(block.__aexit__(None, None, None))


def send_plainly(tx: Tx | AsyncTx) -> Callable[[Statement], Any]:
    """How a transaction is spoken to after an error, where its handle would refuse."""
    return getattr(tx, "send_plainly", tx.send)


def advance(flow: TxFlow[R], driver: TxDriver, move: Callable[[], TxEffect], *, bodies: bool = True) -> R | TxBody:
    """Resume the flow by `move` and drive it to its end, or, without `bodies`, to the user's body."""
    try:
        effect = move()
        while bodies or not isinstance(effect, TxBody):
            try:
                reply = driver.perform(effect)
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
        return effect
    except StopIteration as done:
        ended: R = done.value
        return ended


async def aadvance(
    flow: TxFlow[R], driver: AsyncTxDriver, move: Callable[[], TxEffect], *, bodies: bool = True
) -> R | TxBody:
    try:
        effect = move()
        while bodies or not isinstance(effect, TxBody):
            try:
                reply = await driver.perform(effect)
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
        return effect
    except StopIteration as done:
        ended: R = done.value
        return ended


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


async def wait_through_cancels(work: Awaitable[R]) -> R:
    """Await to the end, and only then let a cancellation through; but not for ever."""
    import asyncio

    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    held: asyncio.CancelledError | None = None
    limit: float | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=None if limit is None else max(limit - loop.time(), 0))
        except asyncio.CancelledError as cancelled:
            held = held or cancelled
            limit = limit or loop.time() + CANCEL_TIMEOUT_SECONDS
        if limit is not None and loop.time() >= limit:
            task.cancel()
            limit = None
    if held is not None:
        with suppress(BaseException):
            task.result()  # whatever it was, nobody waits for it any more; the next call with this key finds out
        raise held
    return task.result()
