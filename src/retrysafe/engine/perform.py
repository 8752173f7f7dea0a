"""Performing effects for threads: the I/O at the edge. Its twin for event loops is aperform.py.

After an unclear failure the same operation is sent again: it recognises its own earlier success, so the second
reply is the truth about the first. Nobody guesses.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.effects import Announce, Effect, Invoke, Pause
from retrysafe.engine.heartbeat import Heartbeat, Lease, held_lease, until_over
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.base import Store

R = TypeVar("R")

RESEND_AFTER = (0.02, 0.1, 0.5, 1.0)
"""Seconds before each further try: long enough for a database to restart, short enough for a waiting client."""

SETTLE_LIMIT = 10.0
"""How long a cancelled caller is kept to find out what its last operation did."""


class Performer:
    """Effects for threads."""

    def __init__(self, store: Store, heartbeat: Heartbeat, sealer: Sealer) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._sealer = sealer

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Op):
            return self.execute(effect)
        if isinstance(effect, Invoke):
            return self._invoke(effect)
        if isinstance(effect, Pause):
            return self._pause(effect)
        assert isinstance(effect, Announce), f"only operations ask for {type(effect).__name__}"
        return self._announce(effect)

    def _pause(self, pause: Pause) -> float:
        began = time.monotonic()
        if self._store.capabilities.wakes and pause.patience:
            self._store.wait(pause.id, pause.patience)  # type: ignore[attr-defined]  # says capabilities.wakes
        else:
            time.sleep(pause.seconds)
        return time.monotonic() - began

    def _announce(self, effect: Announce) -> None:
        if self._store.capabilities.wakes:
            with suppress(StoreError):
                self._store.announce(effect.id)  # type: ignore[attr-defined]  # says capabilities.wakes

    def seal(self, op: Op[R]) -> Op[R]:
        """For operations that go to the store by another way: on the user's connection."""
        return self._sealer.seal(op)

    def execute(self, op: Op[R]) -> R:
        sealed = self._sealer.seal(op)
        for pause in RESEND_AFTER:
            try:
                return self._sealer.unseal(self._store.execute(sealed))
            except StoreUnclear:
                time.sleep(pause)
        return self._sealer.unseal(self._store.execute(sealed))

    def _invoke(self, call: Invoke) -> Any:
        lease = Lease(call.id, call.key, call.fence)
        with until_over(self._heartbeat.start(lease, call.lease)), held_lease(lease):
            call.started = True
            return call.function()
