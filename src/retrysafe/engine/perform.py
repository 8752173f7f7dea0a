"""The performer for threads: it carries out what flows yield. Its twin for event loops is aperform.py; resending.py
decides when an operation is sent again.
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
from retrysafe.engine.effects import Effect, FlowPause, Invoke, LeaveClaim, NotifyWaiters, Persist
from retrysafe.engine.figures import Figures
from retrysafe.engine.heartbeat import Heartbeat, Lease, hold_lease
from retrysafe.engine.orphaned_claims import OrphanedClaims
from retrysafe.engine.probe import Probe
from retrysafe.engine.resending import ResendState
from retrysafe.engine.sealing import Sealer
from retrysafe.engine.unstarted import refuse_coroutine
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import Store, adopt_old_attributes, find_node_lookup, find_notifier

R = TypeVar("R")
P = TypeVar("P", float, float | None)


class Performer:
    """Carries out effects in the calling thread."""

    def __init__(self, store: Store, heartbeat: Heartbeat, sealer: Sealer, figures: Figures | None = None) -> None:
        store = adopt_old_attributes(store)
        self._store = store
        self._notifier = find_notifier(store)
        self._heartbeat = heartbeat
        self._sealer = sealer
        self._figures = figures or Figures()
        self._caches = store.capabilities.caches
        self._circuit = CircuitBreaker(find_node_lookup(store))
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
        if isinstance(effect, LeaveClaim):
            return self._orphaned_claims.leave(effect.id, effect.token)
        assert isinstance(effect, NotifyWaiters), f"only operations ask for {type(effect).__name__}"
        return self._notify_waiters(effect)

    def _pause(self, pause: FlowPause) -> float:
        began = time.monotonic()
        if self._notifier is not None and pause.notify_timeout:
            self._notifier.wait(pause.id, pause.notify_timeout)
        else:
            time.sleep(pause.seconds)
        return time.monotonic() - began

    def _notify_waiters(self, effect: NotifyWaiters) -> None:
        if self._notifier is not None:
            with suppress(StoreError):
                self._notifier.announce(effect.id)

    def seal(self, op: Op[R]) -> Op[R]:
        """Encrypt an operation that goes to the database on the user's connection, not through the store."""
        return self._sealer.seal(op)

    def execute(self, op: Op[R], until: float | None = None) -> R:
        """Execute one operation, and send it again where needed. `until` is the end of its owner's lease (Persist)."""
        sealed = self._sealer.seal(op)
        sent_at = clock()
        if self._circuit.away and not self._caches:
            self._refuse_if_away(op, sent_at)
        resending: ResendState | None = None
        while True:
            try:
                reply = self._execute_interruptible(sealed)
            except StoreError as error:
                failed_at = clock()
                self._figures.observe_store_error(type(op), failed_at - sent_at, type(error).__name__)
                self._circuit.record_failure(op, error, failed_at)
                resending = resending or ResendState(op, sent_at, until)
                pause = self._decide_delay(sealed, partial(resending.delay_after_error, error))
            else:
                self._figures.observe_store(type(op), clock() - sent_at)
                if self._circuit.away:
                    self._circuit.record_answer(op)
                delay = (
                    None
                    if resending is None
                    else self._decide_delay(sealed, partial(resending.delay_after_reply, reply))
                )
                if delay is None:
                    return self._sealer.unseal(stamp_asked(reply, sent_at, resending is not None and resending.unclear))
                pause = delay
            time.sleep(pause)
            sent_at = clock()

    def _execute_interruptible(self, op: Op[R]) -> R:
        """Execute once. A thread may be interrupted anywhere (Ctrl-C, a time limit by signal). A claim that was under
        way then is released in the background, because no caller has its reply."""
        try:
            return self._store.execute(op)
        except StoreError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit):
            if isinstance(op, Claim) and op.lease > 0:
                self._orphaned_claims.add(op)
            raise

    def _decide_delay(self, op: Op[Any], decide: Callable[[float], P]) -> P:
        """Ask resending.py. A claim that is given up without a reply is followed up (orphaned_claims.py)."""
        try:
            return decide(clock())
        except StoreUnclear:
            if isinstance(op, Claim) and op.lease > 0:
                self._orphaned_claims.add(op)
            raise

    def _refuse_if_away(self, op: Op[Any], now: float) -> None:
        """Refuse a new claim while the store is away. Other operations are sent all the same: they have an owner."""
        refusal = self._circuit.refusal_error(op, now)
        if refusal is not None:
            self._probe.start()
            raise refusal

    def close(self) -> None:
        self._probe.stop()
        self._orphaned_claims.close()

    def renew(self, lease: Lease) -> bool:
        """Renew the lease now, without waiting for its next heartbeat."""
        sent_at = clock()
        if not self.execute(lease.build_renewal(), lease.until):
            return False
        lease.record_renewal(sent_at)
        return True

    def ensure_lease(self, lease: Lease) -> bool:
        """Check the lease just before the work begins, and renew it if it has run out: the process may have been
        stopped since the grant. False if another attempt owns the key by now (I33)."""
        return lease.fits(0.0) or (not lease.lost and self.renew(lease))

    def _invoke(self, call: Invoke) -> Any:
        self._heartbeat.start(call.lease, call.duration)
        if not self.ensure_lease(call.lease):
            raise call.lease.lease_lost_error()
        with hold_lease(call.lease):
            call.started = True
            return refuse_coroutine(call.function())


def stamp_asked(reply: R, sent_at: float, resent: bool = False) -> R:
    """Write into a claim's reply when it was asked for: the owner counts its lease from that moment (I33). `resent`: an
    earlier sending was not answered."""
    if isinstance(reply, ClaimReply):
        # R is ClaimReply here
        return ClaimReply(reply.granted, reply.record, reply.now, sent_at, resent)  # type: ignore[return-value]
    return reply
