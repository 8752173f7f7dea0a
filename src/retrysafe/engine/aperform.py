"""Performing effects for event loops: as perform.py, and what cancellation asks for besides.

A file of its own, loaded when the first flow runs on a loop: sync programs need not import asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.aheartbeat import AsyncHeartbeat
from retrysafe.engine.drive import Interrupted
from retrysafe.engine.effects import Announce, Effect, Invoke, Pause
from retrysafe.engine.heartbeat import Lease, held_lease, until_over
from retrysafe.engine.perform import RESEND_AFTER, SETTLE_LIMIT
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import AsyncStore

R = TypeVar("R")


class AsyncPerformer:
    """Effects for event loops."""

    def __init__(self, store: AsyncStore, heartbeat: AsyncHeartbeat, sealer: Sealer) -> None:
        self._store = store
        self.heartbeat = heartbeat
        self._sealer = sealer

    async def __call__(self, effect: Effect) -> Any:
        if not isinstance(effect, Op):
            return await self._other(effect)
        sealed = self._sealer.seal(effect)
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        try:
            reply = await self._send(sealed)
        except asyncio.CancelledError as cause:
            reply = await _through_cancels(self._send(sealed))
            raise Interrupted(reply, cause) from None
        # A driver may lose a cancellation (before Python 3.12 `asyncio.wait_for` does, when what it waits for has
        # just ended). The task still knows that it was asked, and the caller must hear of it.
        if task is not None and task.cancelling() > asked:
            raise Interrupted(reply, asyncio.CancelledError())
        return reply

    async def _other(self, effect: Effect) -> Any:
        if isinstance(effect, Invoke):
            return await self._invoke(effect)
        if isinstance(effect, Pause):
            return await self._pause(effect)
        assert isinstance(effect, Announce), f"only operations ask for {type(effect).__name__}"
        return await self._announce(effect)

    async def _pause(self, pause: Pause) -> float:
        began = time.monotonic()
        if self._store.capabilities.wakes and pause.patience:
            await self._store.wait(pause.id, pause.patience)  # type: ignore[attr-defined]  # says capabilities.wakes
        else:
            await asyncio.sleep(pause.seconds)
        return time.monotonic() - began

    async def _announce(self, effect: Announce) -> None:
        if self._store.capabilities.wakes:
            with suppress(StoreError):
                await self._store.announce(effect.id)  # type: ignore[attr-defined]  # says capabilities.wakes

    def seal(self, op: Op[R]) -> Op[R]:
        return self._sealer.seal(op)

    async def execute(self, op: Op[R]) -> R:
        return await self._send(self._sealer.seal(op))

    async def _send(self, sealed: Op[R]) -> R:
        for pause in RESEND_AFTER:
            try:
                return self._sealer.unseal(await self._store.execute(sealed))
            except StoreUnclear:
                await asyncio.sleep(pause)
        return self._sealer.unseal(await self._store.execute(sealed))

    async def _invoke(self, call: Invoke) -> Any:
        lease = Lease(call.id, call.key, call.fence)
        with until_over(self.heartbeat.start(lease, call.lease)), held_lease(lease):
            call.started = True
            result = call.function()
            return await result if inspect.isawaitable(result) else result


async def _through_cancels(work: Awaitable[R]) -> R:
    """Await to the end, whoever cancels meanwhile, but not for ever."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    deadline = loop.time() + SETTLE_LIMIT
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait({task}, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            continue
    if not task.done():
        task.cancel()
        raise StoreUnclear(f"the caller was cancelled, and the store did not answer within {SETTLE_LIMIT:.0f} s")
    return task.result()
