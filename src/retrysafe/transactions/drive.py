"""Carrying out what the flow asks for: one stage per colour, with at most one open transaction on it."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.engine.effects import Announce, Pause, Ring
from retrysafe.engine.resending import SETTLE_LIMIT
from retrysafe.stores.mongo.plans import Command
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.effects import Begin, Body, Committed, End, Flush, Plainly, TxEffect, TxFlow

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

R = TypeVar("R")
_log = logging.getLogger("retrysafe")


class RollBack(Exception):
    """Thrown into a transaction's block to undo it."""


class Stage:
    """Threads. `tx` is the open transaction, if there is one."""

    def __init__(self, safe: RetrySafe, source: TxSource) -> None:
        self._safe = safe
        self._source = source
        self._block: AbstractContextManager[Tx] | None = None
        self.tx: Tx | None = None

    def perform(self, effect: TxEffect) -> Any:
        if isinstance(effect, Statement | Command):
            return self._open().send(effect)
        if isinstance(effect, Body):
            with effect.staging.on(self._open().handle):
                return effect.function(self._open().handle)
        if isinstance(effect, Begin):
            return self._begin()
        if isinstance(effect, End):
            return self._commit() if effect.how == "commit" else self.close()
        if isinstance(effect, Flush):
            return self._open().flush()
        if isinstance(effect, Pause):
            return time.sleep(effect.seconds)
        if isinstance(effect, Committed):
            return getattr(self.tx, "committed", None)
        if isinstance(effect, Plainly):
            return send_plainly(self._open())(effect.statement)
        if isinstance(effect, Ring):
            bell = self._safe.bell
            return self._safe.performer()(Announce(bell.id)) if bell.ring() else None
        return self._safe.execute(effect)

    def close(self) -> None:
        """Roll back what is open. A connection that is gone has done so itself."""
        block, self._block, self.tx = self._block, None, None
        if block is None:
            return
        undo = RollBack()
        try:
            block.__exit__(RollBack, undo, None)
        except Exception as error:
            if error is not undo:
                _log.debug("rolling back failed: %s", error)

    def _open(self) -> Tx:
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


class AsyncStage:
    """Event loops. An end is carried through a cancellation: no commit is left half way."""

    def __init__(self, safe: RetrySafe, source: AsyncTxSource) -> None:
        self._safe = safe
        self._source = source
        self._block: AbstractAsyncContextManager[AsyncTx] | None = None
        self.tx: AsyncTx | None = None

    async def perform(self, effect: TxEffect) -> Any:
        if isinstance(effect, Statement | Command):
            return await self._open().send(effect)
        if isinstance(effect, Body):
            with effect.staging.on(self._open().handle):
                result = effect.function(self._open().handle)
                return await result if inspect.isawaitable(result) else result
        if isinstance(effect, Begin):
            return await self._begin()
        if isinstance(effect, End):
            return await (self._commit() if effect.how == "commit" else self.close())
        if isinstance(effect, Flush):
            return await self._open().flush()
        if isinstance(effect, Pause):
            return await _sleep(effect.seconds)
        if isinstance(effect, Committed):
            return getattr(self.tx, "committed", None)
        if isinstance(effect, Plainly):
            return await send_plainly(self._open())(effect.statement)
        if isinstance(effect, Ring):
            bell = self._safe.bell
            return await self._safe.async_performer()(Announce(bell.id)) if bell.ring() else None
        return await self._safe.aexecute(effect)

    async def close(self) -> None:
        block, self._block, self.tx = self._block, None, None
        if block is None:
            return
        undo = RollBack()
        try:
            await through_cancels(block.__aexit__(RollBack, undo, None))
        except Exception as error:
            if error is not undo:
                _log.debug("rolling back failed: %s", error)

    def _open(self) -> AsyncTx:
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
        await through_cancels(block.__aexit__(None, None, None))


def send_plainly(tx: Tx | AsyncTx) -> Callable[[Statement], Any]:
    """How a transaction is spoken to after an error, where its handle would refuse."""
    return getattr(tx, "send_plainly", tx.send)


def advance(flow: TxFlow[R], stage: Stage, move: Callable[[], TxEffect], *, bodies: bool = True) -> R | Body:
    """Resume the flow by `move` and drive it to its end, or, without `bodies`, to the user's body."""
    try:
        effect = move()
        while bodies or not isinstance(effect, Body):
            try:
                reply = stage.perform(effect)
            except Exception as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
        return effect
    except StopIteration as done:
        ended: R = done.value
        return ended


async def aadvance(
    flow: TxFlow[R], stage: AsyncStage, move: Callable[[], TxEffect], *, bodies: bool = True
) -> R | Body:
    try:
        effect = move()
        while bodies or not isinstance(effect, Body):
            try:
                reply = await stage.perform(effect)
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


async def through_cancels(work: Awaitable[R]) -> R:
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
            limit = limit or loop.time() + SETTLE_LIMIT
        if limit is not None and loop.time() >= limit:
            task.cancel()
            limit = None
    if held is not None:
        with suppress(BaseException):
            task.result()  # whatever it was, nobody waits for it any more; the next call with this key finds out
        raise held
    return task.result()
