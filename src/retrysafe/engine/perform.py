"""Performing effects for threads: the I/O at the edge. Its twin for event loops is aperform.py; when an operation is
sent again is decided in resending.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.engine.circuit import CircuitBreaker
from retrysafe.engine.clock import clock
from retrysafe.engine.effects import Effect, FlowPause, Invoke, NotifyWaiters, Persist
from retrysafe.engine.heartbeat import Heartbeat, Lease, hold_lease
from retrysafe.engine.orphaned_claims import OrphanedClaims
from retrysafe.engine.probe import Probe
from retrysafe.engine.resending import ResendState
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import Store, node_of

R = TypeVar("R")
P = TypeVar("P", float, float | None)


class Performer:
    """Effects for threads."""

    def __init__(self, store: Store, heartbeat: Heartbeat, sealer: Sealer) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._sealer = sealer
        self._caches = getattr(store, "caches", False)
        self._circuit = CircuitBreaker(partial(node_of, store))
        self._probe = Probe(store, self._circuit)
        self._orphaned_claims = OrphanedClaims(store.execute)

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Op):
            return self.execute(effect)
        if isinstance(effect, Persist):
            return self.execute(effect.op, effect.until)
        if isinstance(effect, Invoke):
            return self._invoke(effect)
        if isinstance(effect, FlowPause):
            return self._pause(effect)
        assert isinstance(effect, NotifyWaiters), f"only operations ask for {type(effect).__name__}"
        return self._notify_waiters(effect)

    def _pause(self, pause: FlowPause) -> float:
        began = time.monotonic()
        if self._store.capabilities.wakes and pause.notify_timeout:
            self._store.wait(pause.id, pause.notify_timeout)  # type: ignore[attr-defined]  # says capabilities.wakes
        else:
            time.sleep(pause.seconds)
        return time.monotonic() - began

    def _notify_waiters(self, effect: NotifyWaiters) -> None:
        if self._store.capabilities.wakes:
            with suppress(StoreError):
                self._store.announce(effect.id)  # type: ignore[attr-defined]  # says capabilities.wakes

    def seal(self, op: Op[R]) -> Op[R]:
        """For operations that go to the store by another way: on the user's connection."""
        return self._sealer.seal(op)

    def execute(self, op: Op[R], until: float | None = None) -> R:
        """One operation, sent again where that is needed; `until` is where its owner's lease ends (Persist)."""
        sealed = self._sealer.seal(op)
        asked = clock()
        if self._circuit.away and not self._caches:
            self._refuse_if_away(op, asked)
        resending: ResendState | None = None
        while True:
            try:
                reply = self._execute_interruptible(sealed)
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
            time.sleep(pause)
            asked = clock()

    def _execute_interruptible(self, op: Op[R]) -> R:
        """A thread may be interrupted anywhere (Ctrl-C, a time limit by signal). A claim that was under way then is
        given back: nobody heard what became of it."""
        try:
            return self._store.execute(op)
        except StoreError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit):
            if isinstance(op, Claim) and op.lease > 0:
                self._orphaned_claims.add(op)
            raise

    def _decide_delay(self, op: Op[Any], decide: Callable[[float], P]) -> P:
        """What resending.py says. A claim that is given up unheard is looked after (leftover.py)."""
        try:
            return decide(clock())
        except StoreUnclear:
            if isinstance(op, Claim) and op.lease > 0:
                self._orphaned_claims.add(op)
            raise

    def _refuse_if_away(self, op: Op[Any], now: float) -> None:
        """A new claim, while the store is away. Others are sent all the same: they have an owner."""
        refusal = self._circuit.refusal_error(op, now)
        if refusal is not None:
            self._probe.start()
            raise refusal

    def close(self) -> None:
        self._probe.stop()
        self._orphaned_claims.close()

    def renew(self, lease: Lease) -> bool:
        """Ask for a new lease now, not when the next beat is due."""
        asked = clock()
        if not self.execute(lease.build_renewal(), lease.until):
            return False
        lease.record_renewal(asked)
        return True

    def ensure_lease(self, lease: Lease) -> bool:
        """Whether it still stands, just before the work begins. A process that was stopped since it was granted asks
        for another; somebody else may have it by now (I33)."""
        return lease.fits(0.0) or (not lease.lost and self.renew(lease))

    def _invoke(self, call: Invoke) -> Any:
        self._heartbeat.start(call.lease, call.duration)
        if not self.ensure_lease(call.lease):
            raise call.lease.lease_lost_error()
        with hold_lease(call.lease):
            call.started = True
            return call.function()


def stamp_asked(reply: R, asked: float) -> R:
    """A claim's reply says when it was asked for: from then on its owner counts the lease (I33)."""
    if isinstance(reply, ClaimReply):
        return ClaimReply(reply.granted, reply.record, reply.now, asked)  # type: ignore[return-value]  # R is one
    return reply
