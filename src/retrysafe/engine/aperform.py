"""Performing effects for event loops: as perform.py, and what cancellation asks for besides.

A file of its own, loaded when the first flow runs on a loop: sync programs need not import asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op, Release
from retrysafe.engine.aheartbeat import AsyncHeartbeat
from retrysafe.engine.circuit import FIRST_PROBE_SECONDS, CircuitBreaker, next_pause, proves_contact
from retrysafe.engine.clock import clock
from retrysafe.engine.drive import CancelledDuringOp
from retrysafe.engine.effects import Effect, FlowPause, Invoke, NotifyWaiters, Persist
from retrysafe.engine.heartbeat import Lease, hold_lease
from retrysafe.engine.orphaned_claims import MAX_ORPHANED_CLAIMS, ORPHANED_NOTE, OrphanFlow, release_orphaned
from retrysafe.engine.perform import P, stamp_asked
from retrysafe.engine.resending import CANCEL_TIMEOUT_SECONDS, ResendState
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import AsyncStore, is_in_order, node_of

R = TypeVar("R")


CLOSE_TIMEOUT_SECONDS = 5.0
"""Seconds a store that is closed waits for claims that are being given back."""


class AsyncPerformer:
    """Effects for event loops."""

    def __init__(self, store: AsyncStore, heartbeat: AsyncHeartbeat, sealer: Sealer) -> None:
        self._store = store
        self.heartbeat = heartbeat
        self._sealer = sealer
        self._detached: set[asyncio.Task[Any]] = set()
        self._caches = getattr(store, "caches", False)
        self._circuit = CircuitBreaker(partial(node_of, store))
        self._probe: asyncio.Task[None] | None = None

    async def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Op):
            return await self._execute_through_cancel(effect, None)
        if isinstance(effect, Persist):
            return await self._execute_through_cancel(effect.op, effect.until)
        return await self._perform_other(effect)

    async def _execute_through_cancel(self, op: Op[R], until: float | None) -> R:
        """Carry it out. A cancellation meanwhile is held back until its end is known, and then told (Interrupted)."""
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        # A claim that is abandoned half way may be granted when nobody waits for it any more. So it gets a task of its
        # own, which goes on whoever is cancelled. Other writes have an owner: a late copy of them changes nothing. And
        # where the store keeps the order, the second sending tells what became of the first.
        sealed = self._sealer.seal(op)  # once: a copy that is sealed anew would not be recognised
        sending = self._send(op, sealed, until)
        first = asyncio.ensure_future(sending) if type(op) is Claim and not is_in_order(self._store) else None
        try:
            reply = await (sending if first is None else asyncio.shield(first))
        except asyncio.CancelledError as cause:
            if first is not None:
                self._detach_task(op, first)
            raise await self._finish_after_cancel(op, sealed, until, cause) from None
        # A driver may lose a cancellation (before Python 3.12 `asyncio.wait_for` does, when what it waits for has
        # just ended). The task still knows that it was asked, and the caller must hear of it.
        if task is not None and task.cancelling() > asked:
            raise CancelledDuringOp(asyncio.CancelledError(), reply)
        return reply

    async def _finish_after_cancel(
        self, op: Op[Any], sealed: Op[Any], until: float | None, cause: asyncio.CancelledError
    ) -> CancelledDuringOp:
        """The end of an operation whose caller was cancelled: it is sent once more, and the reply is awaited through
        further cancels, but not for ever."""
        work = asyncio.ensure_future(self._send(op, sealed, until))
        if not await _wait_done(work, CANCEL_TIMEOUT_SECONDS):
            self._detach_task(op, work)
            late = StoreUnclear(
                f"the caller was cancelled, and the store did not answer within {CANCEL_TIMEOUT_SECONDS:.0f} s"
            )
            return CancelledDuringOp(cause, None, late)
        if work.cancelled():
            return CancelledDuringOp(cause, None, StoreUnclear("the operation was cancelled together with its caller"))
        error = work.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return CancelledDuringOp(cause, None if error else work.result(), error)

    def _detach_task(self, op: Op[Any], work: asyncio.Task[Any]) -> None:
        """Nobody waits for it any more. A claim that is granted after all is given back: nothing ran."""
        self._detached.add(work)  # a task nobody holds may vanish
        # A claim without a lease is for the worker: it was never this caller's.
        mine = isinstance(op, Claim) and op.lease > 0
        work.add_done_callback(self._release_late_grant if mine else self._discard_task)

    def _discard_task(self, work: asyncio.Task[Any]) -> bool:
        """Whether it came to an end without an error."""
        self._detached.discard(work)
        return not work.cancelled() and work.exception() is None

    def _release_late_grant(self, work: asyncio.Task[Any]) -> None:
        if not self._discard_task(work):
            return
        reply = work.result()
        if isinstance(reply, ClaimReply) and reply.granted and reply.record is not None:
            op = Release(reply.record.id, reply.record.fence, ORPHANED_NOTE)
            self._detach_task(op, asyncio.ensure_future(self._execute_quietly(op)))

    async def _execute_quietly(self, op: Op[Any]) -> None:
        with suppress(StoreError):
            await self.execute(op)

    async def _perform_other(self, effect: Effect) -> Any:
        if isinstance(effect, Invoke):
            return await self._invoke(effect)
        if isinstance(effect, FlowPause):
            return await self._pause(effect)
        assert isinstance(effect, NotifyWaiters), f"only operations ask for {type(effect).__name__}"
        return await self._notify_waiters(effect)

    async def _pause(self, pause: FlowPause) -> float:
        began = time.monotonic()
        if self._store.capabilities.wakes and pause.notify_timeout:
            await self._store.wait(pause.id, pause.notify_timeout)  # type: ignore[attr-defined]  # says capabilities.wakes
        else:
            await asyncio.sleep(pause.seconds)
        return time.monotonic() - began

    async def _notify_waiters(self, effect: NotifyWaiters) -> None:
        if self._store.capabilities.wakes:
            with suppress(StoreError):
                await self._store.announce(effect.id)  # type: ignore[attr-defined]  # says capabilities.wakes

    def seal(self, op: Op[R]) -> Op[R]:
        return self._sealer.seal(op)

    async def execute(self, op: Op[R], until: float | None = None) -> R:
        """One operation, sent again where that is needed; `until` is where its owner's lease ends (Persist)."""
        return await self._send(op, self._sealer.seal(op), until)

    async def _send(self, op: Op[R], sealed: Op[R], until: float | None) -> R:
        asked = clock()
        if self._circuit.away and not self._caches:
            self._refuse_if_away(op, asked)
        resending: ResendState | None = None
        while True:
            try:
                reply = await self._store.execute(sealed)
            except StoreError as error:
                self._circuit.record_failure(op, error, clock())
                resending = resending or ResendState(op, asked, until)
                pause = self._decide_delay(sealed, partial(resending.delay_after_error, error))
            else:
                if self._circuit.away:
                    self._circuit.record_answer(op)
                doubt = (
                    None
                    if resending is None
                    else self._decide_delay(sealed, partial(resending.delay_after_reply, reply))
                )
                if doubt is None:
                    return self._sealer.unseal(stamp_asked(reply, asked))
                pause = doubt
            await asyncio.sleep(pause)
            asked = clock()

    def _decide_delay(self, op: Op[Any], decide: Callable[[float], P]) -> P:
        """What resending.py says. A claim that is given up unheard is looked after (leftover.py)."""
        try:
            return decide(clock())
        except StoreUnclear:
            if isinstance(op, Claim) and op.lease > 0 and len(self._detached) < MAX_ORPHANED_CLAIMS:
                task = asyncio.ensure_future(self._follow(release_orphaned(op)))
                self._detached.add(task)
                task.add_done_callback(self._discard_task)
            raise

    async def _follow(self, story: OrphanFlow) -> None:
        asked = next(story)
        with suppress(StopIteration):
            while True:
                if isinstance(asked, float):
                    await asyncio.sleep(asked)
                    asked = story.send(None)
                    continue
                try:
                    reply = await self._store.execute(asked)
                except StoreError as error:
                    asked = story.throw(error)
                else:
                    asked = story.send(reply)

    def _refuse_if_away(self, op: Op[Any], now: float) -> None:
        refusal = self._circuit.refusal_error(op, now)
        if refusal is None:
            return
        loop = asyncio.get_running_loop()
        if self._probe is None or self._probe.done() or self._probe.get_loop().is_closed():
            self._probe = loop.create_task(self._probe_until_back())
        raise refusal

    async def _probe_until_back(self) -> None:
        """Whether it is back (probe.py): a task of the loop that was refused."""
        pause = FIRST_PROBE_SECONDS
        while self._circuit.away:
            await asyncio.sleep(pause)
            pause = next_pause(pause)
            for node, op in self._circuit.build_probes():
                try:
                    await self._store.execute(op)
                except Exception as error:
                    if not proves_contact(error):
                        continue
                self._circuit.mark_back(node)

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_SECONDS
        # One that ends may leave another: a claim that is granted after all is given back.
        while (left := self._left_on(loop)) and loop.time() < deadline:
            await asyncio.wait(left, timeout=deadline - loop.time())
            await asyncio.sleep(0)  # for those that are told of its end
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        probe, self._probe = self._probe, None
        if probe is not None and probe.get_loop() is asyncio.get_running_loop():
            probe.cancel()
            with suppress(asyncio.CancelledError):
                await probe

    def _left_on(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        return [task for task in self._detached if task.get_loop() is loop]

    async def renew(self, lease: Lease) -> bool:
        """Ask for a new lease now, not when the next beat is due."""
        asked = clock()
        if not await self.execute(lease.build_renewal(), lease.until):
            return False
        lease.record_renewal(asked)
        return True

    async def ensure_lease(self, lease: Lease) -> bool:
        return lease.fits(0.0) or (not lease.lost and await self.renew(lease))

    async def _invoke(self, call: Invoke) -> Any:
        self.heartbeat.start(call.lease, call.duration)
        if not call.lease.fits(0.0) and not await self.ensure_lease(call.lease):
            raise call.lease.lease_lost_error()
        with hold_lease(call.lease):
            call.started = True
            result = call.function()
            return await result if inspect.isawaitable(result) else result


async def _wait_done(work: asyncio.Task[Any], seconds: float) -> bool:
    """Await to the end, whoever cancels meanwhile, but not for ever."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not work.done() and loop.time() < deadline:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work}, timeout=deadline - loop.time())
    return work.done()
