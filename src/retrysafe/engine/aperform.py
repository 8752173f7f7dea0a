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
from retrysafe.engine.circuit import FIRST, Circuit, next_pause, says_something
from retrysafe.engine.clock import clock
from retrysafe.engine.drive import Interrupted
from retrysafe.engine.effects import Announce, Effect, Invoke, Pause, Persist
from retrysafe.engine.heartbeat import Lease, held_lease
from retrysafe.engine.leftover import MOST, NOTE, Story, give_back
from retrysafe.engine.perform import P, stamped
from retrysafe.engine.resending import SETTLE_LIMIT, Resending
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import AsyncStore, in_order, node_of

R = TypeVar("R")


LEAVE_LIMIT = 5.0
"""Seconds a store that is closed waits for claims that are being given back."""


class AsyncPerformer:
    """Effects for event loops."""

    def __init__(self, store: AsyncStore, heartbeat: AsyncHeartbeat, sealer: Sealer) -> None:
        self._store = store
        self.heartbeat = heartbeat
        self._sealer = sealer
        self._left: set[asyncio.Task[Any]] = set()
        self._caches = getattr(store, "caches", False)
        self._circuit = Circuit(partial(node_of, store))
        self._probe: asyncio.Task[None] | None = None

    async def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Op):
            return await self._heard(effect, None)
        if isinstance(effect, Persist):
            return await self._heard(effect.op, effect.until)
        return await self._other(effect)

    async def _heard(self, op: Op[R], until: float | None) -> R:
        """Carry it out. A cancellation meanwhile is held back until its end is known, and then told (Interrupted)."""
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        # A claim that is abandoned half way may be granted when nobody waits for it any more. So it gets a task of its
        # own, which goes on whoever is cancelled. Other writes have an owner: a late copy of them changes nothing. And
        # where the store keeps the order, the second sending tells what became of the first.
        sealed = self._sealer.seal(op)  # once: a copy that is sealed anew would not be recognised
        sending = self._sent(op, sealed, until)
        first = asyncio.ensure_future(sending) if type(op) is Claim and not in_order(self._store) else None
        try:
            reply = await (sending if first is None else asyncio.shield(first))
        except asyncio.CancelledError as cause:
            if first is not None:
                self._leave(op, first)
            raise await self._interrupted(op, sealed, until, cause) from None
        # A driver may lose a cancellation (before Python 3.12 `asyncio.wait_for` does, when what it waits for has
        # just ended). The task still knows that it was asked, and the caller must hear of it.
        if task is not None and task.cancelling() > asked:
            raise Interrupted(asyncio.CancelledError(), reply)
        return reply

    async def _interrupted(
        self, op: Op[Any], sealed: Op[Any], until: float | None, cause: asyncio.CancelledError
    ) -> Interrupted:
        """The end of an operation whose caller was cancelled: it is sent once more, and the reply is awaited through
        further cancels, but not for ever."""
        work = asyncio.ensure_future(self._sent(op, sealed, until))
        if not await _done_within(work, SETTLE_LIMIT):
            self._leave(op, work)
            late = StoreUnclear(f"the caller was cancelled, and the store did not answer within {SETTLE_LIMIT:.0f} s")
            return Interrupted(cause, None, late)
        if work.cancelled():
            return Interrupted(cause, None, StoreUnclear("the operation was cancelled together with its caller"))
        error = work.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return Interrupted(cause, None if error else work.result(), error)

    def _leave(self, op: Op[Any], work: asyncio.Task[Any]) -> None:
        """Nobody waits for it any more. A claim that is granted after all is given back: nothing ran."""
        self._left.add(work)  # a task nobody holds may vanish
        # A claim without a lease is for the worker: it was never this caller's.
        mine = isinstance(op, Claim) and op.lease > 0
        work.add_done_callback(self._give_back if mine else self._forget)

    def _forget(self, work: asyncio.Task[Any]) -> bool:
        """Whether it came to an end without an error."""
        self._left.discard(work)
        return not work.cancelled() and work.exception() is None

    def _give_back(self, work: asyncio.Task[Any]) -> None:
        if not self._forget(work):
            return
        reply = work.result()
        if isinstance(reply, ClaimReply) and reply.granted and reply.record is not None:
            op = Release(reply.record.id, reply.record.fence, NOTE)
            self._leave(op, asyncio.ensure_future(self._try(op)))

    async def _try(self, op: Op[Any]) -> None:
        with suppress(StoreError):
            await self.execute(op)

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

    async def execute(self, op: Op[R], until: float | None = None) -> R:
        """One operation, sent again where that is needed; `until` is where its owner's lease ends (Persist)."""
        return await self._sent(op, self._sealer.seal(op), until)

    async def _sent(self, op: Op[R], sealed: Op[R], until: float | None) -> R:
        asked = clock()
        if self._circuit.away and not self._caches:
            self._refuse(op, asked)
        resending: Resending | None = None
        while True:
            try:
                reply = await self._store.execute(sealed)
            except StoreError as error:
                self._circuit.met(op, error, clock())
                resending = resending or Resending(op, asked, until)
                pause = self._decided(sealed, partial(resending.after, error))
            else:
                if self._circuit.away:
                    self._circuit.answered(op)
                doubt = None if resending is None else self._decided(sealed, partial(resending.unbelieved, reply))
                if doubt is None:
                    return self._sealer.unseal(stamped(reply, asked))
                pause = doubt
            await asyncio.sleep(pause)
            asked = clock()

    def _decided(self, op: Op[Any], decide: Callable[[float], P]) -> P:
        """What resending.py says. A claim that is given up unheard is looked after (leftover.py)."""
        try:
            return decide(clock())
        except StoreUnclear:
            if isinstance(op, Claim) and op.lease > 0 and len(self._left) < MOST:
                task = asyncio.ensure_future(self._follow(give_back(op)))
                self._left.add(task)
                task.add_done_callback(self._forget)
            raise

    async def _follow(self, story: Story) -> None:
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

    def _refuse(self, op: Op[Any], now: float) -> None:
        refusal = self._circuit.refusal(op, now)
        if refusal is None:
            return
        loop = asyncio.get_running_loop()
        if self._probe is None or self._probe.done() or self._probe.get_loop().is_closed():
            self._probe = loop.create_task(self._ask())
        raise refusal

    async def _ask(self) -> None:
        """Whether it is back (probe.py): a task of the loop that was refused."""
        pause = FIRST
        while self._circuit.away:
            await asyncio.sleep(pause)
            pause = next_pause(pause)
            for node, op in self._circuit.probes():
                try:
                    await self._store.execute(op)
                except Exception as error:
                    if not says_something(error):
                        continue
                self._circuit.back(node)

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEAVE_LIMIT
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
        return [task for task in self._left if task.get_loop() is loop]

    async def renew(self, lease: Lease) -> bool:
        """Ask for a new lease now, not when the next beat is due."""
        asked = clock()
        if not await self.execute(lease.renewal(), lease.until):
            return False
        lease.renewed(asked)
        return True

    async def kept(self, lease: Lease) -> bool:
        return lease.fits(0.0) or (not lease.lost and await self.renew(lease))

    async def _invoke(self, call: Invoke) -> Any:
        self.heartbeat.start(call.lease, call.duration)
        if not call.lease.fits(0.0) and not await self.kept(call.lease):
            raise call.lease.lost_to_another()
        with held_lease(call.lease):
            call.started = True
            result = call.function()
            return await result if inspect.isawaitable(result) else result


async def _done_within(work: asyncio.Task[Any], seconds: float) -> bool:
    """Await to the end, whoever cancels meanwhile, but not for ever."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not work.done() and loop.time() < deadline:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work}, timeout=deadline - loop.time())
    return work.done()
