"""Performs the effects of a transaction's flow: one driver for threads and one for event loops, each with at most one
open transaction."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.drive import is_same_stop
from retrysafe.engine.effects import FlowPause, NotifyWaiters, NotifyWorker
from retrysafe.engine.resending import CANCEL_TIMEOUT_SECONDS
from retrysafe.engine.unstarted import refuse_coroutine
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.effects import AskCommitted, Begin, End, Flush, SendDirect, TxBody, TxEffect, TxFlow

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

R = TypeVar("R")
_log = logging.getLogger("retrysafe")


class RollbackSignal(Exception):
    """Raised inside a transaction's block to roll it back."""


class TxDriver:
    """Performs effects in threads. `tx` is the open transaction, if there is one."""

    def __init__(self, safe: RetrySafe, source: TxSource) -> None:
        self._safe = safe
        self._source = source
        self._block: AbstractContextManager[Tx] | None = None
        self.tx: Tx | None = None

    def perform(self, effect: TxEffect) -> Any:
        if isinstance(effect, TxBody):
            with effect.staging.collect_on(self._require_tx().handle):
                return refuse_coroutine(effect.function(self._require_tx().handle))
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
        if isinstance(effect, SendDirect):
            return send_direct(self._require_tx())(effect.statement)
        if isinstance(effect, NotifyWorker):
            notifier = self._safe.worker_notifier
            return self._safe.performer()(NotifyWaiters(notifier.id)) if notifier.wake_local() else None
        if isinstance(effect, Op):
            return self._safe.execute(effect)
        return self._require_tx().send(effect)  # a statement; on MongoDB a command

    def close(self) -> None:
        """Roll back the open transaction, if there is one. If the connection was lost, the server has rolled back."""
        block, self._block, self.tx = self._block, None, None
        if block is None:
            return
        signal = RollbackSignal()
        try:
            block.__exit__(RollbackSignal, signal, None)
        except Exception as error:
            if error is not signal:
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
    """Performs effects on an event loop. A commit or rollback is finished although the caller is cancelled."""

    def __init__(self, safe: RetrySafe, source: AsyncTxSource) -> None:
        self._safe = safe
        self._source = source
        self._block: AbstractAsyncContextManager[AsyncTx] | None = None
        self.tx: AsyncTx | None = None

    async def perform(self, effect: TxEffect) -> Any:
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
        if isinstance(effect, SendDirect):
            return await send_direct(self._require_tx())(effect.statement)
        if isinstance(effect, NotifyWorker):
            notifier = self._safe.worker_notifier
            return await self._safe.async_performer()(NotifyWaiters(notifier.id)) if notifier.wake_local() else None
        if isinstance(effect, Op):
            return await self._safe.aexecute(effect)
        return await self._require_tx().send(effect)

    async def close(self) -> None:
        block, self._block, self.tx = self._block, None, None
        if block is None:
            return
        signal = RollbackSignal()
        try:
            await await_despite_cancellation(block.__aexit__(RollbackSignal, signal, None))
        except Exception as error:
            if error is not signal:
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
        await await_despite_cancellation(block.__aexit__(None, None, None))


def send_direct(tx: Tx | AsyncTx) -> Callable[[Statement], Any]:
    """The function that sends a statement after an error, past a handle that would refuse it."""
    return getattr(tx, "send_direct", tx.send)


def advance(flow: TxFlow[R], driver: TxDriver, move: Callable[[], TxEffect], *, bodies: bool = True) -> R | TxBody:
    """Resume the flow by `move`, and perform its effects until it ends. With `bodies=False` it stops at the effect that
    is the user's body, and returns that."""
    thrown: BaseException | None = None
    try:
        effect = move()
        while bodies or not isinstance(effect, TxBody):
            try:
                reply = driver.perform(effect)
            except GeneratorExit:
                raise
            except BaseException as error:  # the flow may still settle after a KeyboardInterrupt, and raises it again
                thrown = error
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
        return effect
    except StopIteration as done:
        ended: R = done.value
        return ended
    except RuntimeError as error:
        if not is_same_stop(error, thrown):
            raise
    assert thrown is not None
    raise thrown


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
            except GeneratorExit:
                raise
            except BaseException as stop:
                await settle_despite_cancellation(flow, driver, stop)
                raise
            else:
                effect = flow.send(reply)
        return effect
    except StopIteration as done:
        ended: R = done.value
        return ended


async def settle_despite_cancellation(flow: TxFlow[Any], driver: AsyncTxDriver, stop: BaseException) -> None:
    """Let the flow settle after a cancellation. It raises the cancellation again at its end, and so does the caller."""

    async def settle() -> None:
        try:
            await aadvance(flow, driver, lambda: flow.throw(stop))
        except BaseException as error:
            if error is not stop:
                _log.debug("settling after %s failed: %s", type(stop).__name__, error)

    await await_despite_cancellation(settle())


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


async def await_despite_cancellation(work: Awaitable[R]) -> R:
    """Await `work` to its end, and raise a cancellation of the caller only afterwards. CANCEL_TIMEOUT_SECONDS after the
    first cancellation the work is cancelled, too."""
    import asyncio

    from retrysafe.engine.cancellation import finish_despite_cancellation

    task = asyncio.ensure_future(work)
    held = await finish_despite_cancellation(task, seconds_after_cancel=CANCEL_TIMEOUT_SECONDS)
    if not task.done():
        task.cancel()
        await finish_despite_cancellation(task)
    if held.first is not None:
        with suppress(BaseException):
            task.result()  # nobody waits for the result any more; the next call with this key finds out
        raise held.first
    return task.result()
