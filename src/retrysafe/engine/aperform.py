"""The performer for event loops: the twin of perform.py, and the handling of cancellation.

A file of its own, loaded when the first flow runs on a loop: sync programs need not import asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.engine.aheartbeat import AsyncHeartbeat
from retrysafe.engine.cancellation import finish_despite_cancellation
from retrysafe.engine.circuit import FIRST_PROBE_SECONDS, CircuitBreaker, next_pause, proves_contact
from retrysafe.engine.clock import clock
from retrysafe.engine.drive import CancelledDuringOp, arun
from retrysafe.engine.effects import Effect, FlowPause, Invoke, LeaveClaim, NotifyWaiters, Persist
from retrysafe.engine.figures import Figures
from retrysafe.engine.heartbeat import Lease, hold_lease
from retrysafe.engine.orphaned_claims import (
    MAX_ORPHANED_CLAIMS,
    ORPHAN_LOOKUP_SECONDS,
    OrphanFlow,
    release_late_grant,
    release_orphaned,
)
from retrysafe.engine.perform import P, stamp_asked
from retrysafe.engine.resending import CANCEL_TIMEOUT_SECONDS, ResendState
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import (
    EXECUTE_INSTEAD,
    AsyncStore,
    adopt_old_async_attributes,
    find_async_notifier,
    find_node_lookup,
    find_ordered,
    find_submit,
)

R = TypeVar("R")

Failure = tuple[StoreError, float]
"""The error of a sending, and when that began."""

CLOSE_TIMEOUT_SECONDS = 5.0
"""How long closing waits for claims that are being released in the background."""


def pass_on(submitted: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """A future that ends as the submitted one does. Cancelling it cancels nothing else: `asyncio.shield`, at half its
    cost."""
    waiter = submitted.get_loop().create_future()
    submitted.add_done_callback(partial(_pass_result, waiter))
    return waiter


def _pass_result(waiter: asyncio.Future[Any], submitted: asyncio.Future[Any]) -> None:
    if waiter.done():  # its caller was cancelled
        return
    error = asyncio.CancelledError() if submitted.cancelled() else submitted.exception()
    if error is None:
        waiter.set_result(submitted.result())
    elif isinstance(error, asyncio.CancelledError):
        waiter.cancel()
    else:
        waiter.set_exception(error)


class AsyncPerformer:
    """Carries out effects on event loops."""

    def __init__(
        self, store: AsyncStore, heartbeat: AsyncHeartbeat, sealer: Sealer, figures: Figures | None = None
    ) -> None:
        store = adopt_old_async_attributes(store)
        self._store = store
        self._notifier = find_async_notifier(store)
        self._ordered = find_ordered(store)
        self._submit = find_submit(store)
        self.heartbeat = heartbeat
        self._sealer = sealer
        self._figures = figures or Figures()
        self._detached: set[asyncio.Future[Any]] = set()
        self._caches = store.capabilities.caches
        self._circuit = CircuitBreaker(find_node_lookup(store))
        self._probe: asyncio.Task[None] | None = None

    def __call__(self, effect: Effect) -> Coroutine[Any, Any, Any]:
        if type(effect) is Persist:
            return self.execute_through_cancel(effect.op, effect.until)
        if isinstance(effect, Op):
            return self.execute_through_cancel(effect)
        return self._perform_other(effect)

    async def execute_through_cancel(self, op: Op[R], until: float | None = None) -> R:
        """Execute the operation. A cancellation that arrives meanwhile is held back until the operation has ended, and
        is then raised as CancelledDuringOp."""
        sealed = self._sealer.seal(op) if self._sealer.active else op  # once: a second copy would not be recognised
        # A claim that is abandoned half way may be granted when no caller waits for it any more. So the sending of a
        # claim goes on when the caller is cancelled. Other writes have an owner: a late copy of them has no effect.
        # Where the store keeps the order, the reply to the second sending tells what became of the first.
        goes_on = type(op) is Claim and not (self._ordered is not None and self._ordered.in_order)
        sent_at = clock()
        submitted: asyncio.Future[Any] | None = None
        if self._submit is not None and not self._circuit.away:  # while it is away, executing refuses it or asks
            try:
                submitted = self._submit(sealed)
            except StoreError:
                submitted = None  # executing it raises the same
        if submitted is None:
            return await self._execute_in_task(op, sealed, until, goes_on)
        failed: Failure | None = None
        try:
            reply: Any = await (pass_on(submitted) if goes_on else submitted)
        except asyncio.CancelledError as cause:
            if goes_on:
                self._detach_submitted(op, sealed, submitted)
            raise await self._finish_after_cancel(op, sealed, until, cause, goes_on) from None
        except StoreError as error:
            failed = (error, sent_at)
        else:
            if reply is not EXECUTE_INSTEAD:
                return self._accept(op, reply, sent_at)  # type: ignore[no-any-return]  # the operation's own reply
        return await self._execute_in_task(op, sealed, until, goes_on, failed)

    async def _execute_in_task(
        self, op: Op[R], sealed: Op[R], until: float | None, goes_on: bool, failed: Failure | None = None
    ) -> R:
        """Execute what was not submitted, or was submitted and not answered. With `goes_on` in a task of its own."""
        task = asyncio.current_task()
        cancels_before = task.cancelling() if task is not None else 0
        sending = self._send(op, sealed, until, failed)
        work = asyncio.ensure_future(sending) if goes_on else None
        try:
            reply = await (sending if work is None else asyncio.shield(work))
        except asyncio.CancelledError as cause:
            if work is not None:
                self._detach_task(op, work)
            raise await self._finish_after_cancel(op, sealed, until, cause, goes_on) from None
        # A driver may lose a cancellation (before Python 3.12 `asyncio.wait_for` does, when what it waits for has
        # just ended). The task still counts the request, so the cancellation is raised here.
        if task is not None and task.cancelling() > cancels_before:
            raise CancelledDuringOp(asyncio.CancelledError(), reply)
        return reply

    def _accept(self, op: Op[R], reply: R, sent_at: float, resent: bool = False) -> R:
        """The store has answered what was sent at `sent_at`. `resent`: an earlier sending may still arrive."""
        figures = self._figures
        try:  # the lines of `observe_store`: every request comes here twice
            times = figures.store_times[type(op)]
        except KeyError:
            times = figures.add_store_times(type(op))
        times.append(clock() - sent_at)
        if len(times) >= figures.max_unsorted_times:
            figures.sort_store_times(type(op))
        if self._circuit.away:
            self._circuit.record_answer(op)
        if reply is True or reply is False:  # of a write that only says whether it was done
            return reply
        stamped: Any = stamp_asked(reply, sent_at, resent)
        if type(stamped) is ClaimReply and stamped.granted and not self._sealer.active:
            return stamped  # type: ignore[return-value]  # only an answer may be unreadable, and a new attempt has none
        return self._sealer.unseal(stamped)  # type: ignore[no-any-return]  # the operation's own reply

    async def _finish_after_cancel(
        self, op: Op[Any], sealed: Op[Any], until: float | None, cause: asyncio.CancelledError, goes_on: bool
    ) -> CancelledDuringOp:
        """Find out how the operation of a cancelled caller ended: send it once more, and wait for the reply for a
        limited time, also if the caller is cancelled again. `goes_on`: the first sending has its own follow-up."""
        work = asyncio.ensure_future(self._send(op, sealed, until))
        await finish_despite_cancellation(work, seconds=CANCEL_TIMEOUT_SECONDS)
        if not work.done():
            self._detach_task(op, work)
            if not goes_on:
                work.add_done_callback(partial(self._follow_up_cut_off, op, sealed))
            late = StoreUnclear(
                f"the caller was cancelled, and the store did not answer within {CANCEL_TIMEOUT_SECONDS:.0f} s"
            )
            return CancelledDuringOp(cause, None, late)
        if work.cancelled():
            return CancelledDuringOp(cause, None, StoreUnclear("the operation was cancelled together with its caller"))
        error = work.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        if not goes_on:
            self._follow_up_cut_off(op, sealed, work)
        reply = None if error else work.result()
        if isinstance(reply, ClaimReply):
            reply = reply._replace(resent=True)  # the first sending may still arrive
        return CancelledDuringOp(cause, reply, error)

    def _detach_task(self, op: Op[Any], work: asyncio.Future[Any]) -> None:
        """Let a task or a submitted operation end without a caller. A claim that is granted after all is released:
        nothing ran."""
        self._detached.add(work)  # asyncio keeps only a weak reference
        # A claim without a lease is for the worker: this caller never owned it.
        if isinstance(op, Claim) and op.lease > 0:
            work.add_done_callback(partial(self._release_late_grant, op))
        else:
            work.add_done_callback(self._discard_task)

    def _detach_submitted(self, op: Op[Any], sealed: Op[Any], submitted: asyncio.Future[Any]) -> None:
        """As `_detach_task`. What was submitted is not sent again by itself if its reply is lost, as `_send` does."""
        self._detach_task(op, submitted)
        submitted.add_done_callback(partial(self._follow_up_unanswered, op, sealed))

    def _follow_up_unanswered(self, op: Op[Any], sealed: Op[Any], submitted: asyncio.Future[Any]) -> None:
        if submitted.cancelled() or isinstance(submitted.exception(), StoreUnclear):
            self._follow_up_claim(op, sealed)

    def _follow_up_cut_off(self, op: Op[Any], sealed: Op[Any], second: asyncio.Future[Any]) -> None:
        """If the second sending did nothing: the first one was cut off, and may have been granted. A second sending
        that is unclear has its own follow-up."""
        error = None if second.cancelled() else second.exception()
        if isinstance(error, StoreError) and not isinstance(error, StoreUnclear):
            self._follow_up_claim(op, sealed)

    def _follow_up_claim(self, op: Op[Any], sealed: Op[Any]) -> None:
        """Nobody waits for this claim any more, and nobody knows whether it was granted."""
        if isinstance(op, Claim) and op.lease > 0:
            assert isinstance(sealed, Claim)
            self._follow_up(release_orphaned(sealed))

    def _discard_task(self, work: asyncio.Future[Any]) -> bool:
        """Forget a task that has ended. True if it ended without an error."""
        self._detached.discard(work)
        return not work.cancelled() and work.exception() is None

    def _release_late_grant(self, op: Claim, work: asyncio.Future[Any]) -> None:
        """The caller has left. Whatever this claim is granted is released, now or when a late copy arrives."""
        if not self._discard_task(work):
            return
        reply = work.result()
        if isinstance(reply, ClaimReply) and reply.granted:
            self._follow_up(release_late_grant(op.id, op.token), always=True)
        elif isinstance(reply, ClaimReply) and reply.resent:
            self._follow_up(release_late_grant(op.id, op.token, ORPHAN_LOOKUP_SECONDS))

    async def _perform_other(self, effect: Effect) -> Any:
        if isinstance(effect, Invoke):
            return await self._invoke(effect)
        if isinstance(effect, FlowPause):
            return await self._pause(effect)
        if isinstance(effect, LeaveClaim):
            return self._follow_up(release_late_grant(effect.id, effect.token))
        assert isinstance(effect, NotifyWaiters), f"only operations ask for {type(effect).__name__}"
        return await self._notify_waiters(effect)

    async def _pause(self, pause: FlowPause) -> float:
        began = time.monotonic()
        if self._notifier is not None and pause.notify_timeout:
            await self._notifier.wait(pause.id, pause.notify_timeout)
        else:
            await asyncio.sleep(pause.seconds)
        return time.monotonic() - began

    async def _notify_waiters(self, effect: NotifyWaiters) -> None:
        if self._notifier is not None:
            with suppress(StoreError):
                await self._notifier.announce(effect.id)

    def seal(self, op: Op[R]) -> Op[R]:
        return self._sealer.seal(op)

    async def execute(self, op: Op[R], until: float | None = None) -> R:
        """Execute one operation, and send it again where needed. `until` is the end of its owner's lease (Persist)."""
        return await self._send(op, self._sealer.seal(op), until)

    async def _send(self, op: Op[R], sealed: Op[R], until: float | None, failed: Failure | None = None) -> R:
        """Execute the operation until it is answered. `failed` is the error of a first sending, and its time."""
        error, sent_at = failed or (None, clock())
        if error is None and self._circuit.away and not self._caches:
            self._refuse_if_away(op, sent_at)
        resending: ResendState | None = None
        while True:
            reply: Any = None
            if error is None:
                try:
                    reply = await self._store.execute(sealed)
                except StoreError as raised:
                    error = raised
            if error is not None:
                failed_at = clock()
                self._figures.observe_store_error(type(op), failed_at - sent_at, type(error).__name__)
                self._circuit.record_failure(op, error, failed_at)
                resending = resending or ResendState(op, sent_at, until)
                pause = self._decide_delay(sealed, partial(resending.delay_after_error, error))
                error = None
            else:
                accepted: R = self._accept(op, reply, sent_at, resending is not None and resending.unclear)
                delay = (
                    None
                    if resending is None
                    else self._decide_delay(sealed, partial(resending.delay_after_reply, reply))
                )
                if delay is None:
                    return accepted
                pause = delay
            await asyncio.sleep(pause)
            sent_at = clock()

    def _decide_delay(self, op: Op[Any], decide: Callable[[float], P]) -> P:
        """Ask resending.py. A claim that is given up without a reply is followed up (orphaned_claims.py)."""
        try:
            return decide(clock())
        except StoreUnclear:
            self._follow_up_claim(op, op)
            raise

    def _follow_up(self, flow: OrphanFlow, *, always: bool = False) -> None:
        """Carry the flow out in the background; `always` also beyond the limit, for a grant that is known."""
        if always or len(self._detached) < MAX_ORPHANED_CLAIMS:
            task = asyncio.ensure_future(arun(flow, self._perform_orphan_step))
            self._detached.add(task)
            task.add_done_callback(self._discard_task)

    async def _perform_orphan_step(self, step: Op[Any] | float) -> Any:
        """What the flow of an orphaned claim yields: an operation, or seconds to wait."""
        if isinstance(step, float):
            return await asyncio.sleep(step)
        return await self._store.execute(step)

    def _refuse_if_away(self, op: Op[Any], now: float) -> None:
        refusal = self._circuit.refusal_error(op, now)
        if refusal is None:
            return
        loop = asyncio.get_running_loop()
        if self._probe is None or self._probe.done() or self._probe.get_loop().is_closed():
            self._probe = loop.create_task(self._probe_until_back())
        raise refusal

    async def _probe_until_back(self) -> None:
        """Ask the store until it answers, in a task of the loop whose claim was refused (probe.py is the twin)."""
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
        # A task that ends may start another: a claim that is granted after all is released.
        while (left := self._left_on(loop)) and loop.time() < deadline:
            await asyncio.wait(left, timeout=deadline - loop.time())
            await asyncio.sleep(0)  # so that the done callbacks run
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        probe, self._probe = self._probe, None
        if probe is not None and probe.get_loop() is asyncio.get_running_loop():
            probe.cancel()
            with suppress(asyncio.CancelledError):
                await probe

    def _left_on(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[Any]]:
        return [task for task in self._detached if task.get_loop() is loop]

    async def renew(self, lease: Lease) -> bool:
        """Renew the lease now, without waiting for its next heartbeat."""
        sent_at = clock()
        if not await self.execute(lease.build_renewal(), lease.until):
            return False
        lease.record_renewal(sent_at)
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
