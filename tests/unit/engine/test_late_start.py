"""A process that stood still between its claim and its work: it begins only what is still its own (I33)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, Renew, Withdraw
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine import aperform, heartbeat, perform
from retrysafe.errors import LeaseLost, StoreUnavailable
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper
from retrysafe.testing.builders import record_of
from tests.unit.engine.hands import Work, task


class Still:
    """Stands still for a minute after a claim was granted; what happens meanwhile is `meanwhile`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = MemoryStore()
        self.passed = 0.0
        self.meanwhile: Callable[[Claim], Any] = lambda op: None
        self.seen: list[type[Any]] = []
        self.down: type[Any] | None = None
        for module in (perform, aperform, heartbeat):
            monkeypatch.setattr(module, "clock", lambda: 1000.0 + self.passed)

    def before(self, op: Any) -> None:
        self.seen.append(type(op))
        if self.down is type(op):
            raise StoreUnavailable("not there")

    def after(self, op: Any) -> None:
        if isinstance(op, Claim):
            self.passed += 60.0
            self.meanwhile(op)

    def take_over(self, op: Claim) -> None:
        """Somebody else, a minute later by the store's clock."""
        now = record_of(self.memory.execute(op)).lease_until + SECOND_MICROS
        rival = Claim(
            *op._field_values()[:7], b"rival" + bytes(11), op.run, op.lease, op.retention, op.on_lapse, now=now
        )
        assert self.memory.execute(rival).granted


class Slow(StoreWrapper):
    def __init__(self, still: Still) -> None:
        super().__init__(still.memory)
        self._still = still

    def execute(self, op: Any) -> Any:
        self._still.before(op)
        reply = super().execute(op)
        self._still.after(op)
        return reply


class AsyncSlow(AsyncStoreWrapper):
    def __init__(self, still: Still) -> None:
        super().__init__(AsyncMemoryStore(still.memory))
        self._still = still

    async def execute(self, op: Any) -> Any:
        self._still.before(op)
        reply = await super().execute(op)
        self._still.after(op)
        return reply


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Still:
    return Still(monkeypatch)


async def guarded(still: Still, mode: str, work: Work) -> Any:
    safe = RetrySafe(Slow(still), async_store=AsyncSlow(still))
    given = task(lease=10, abandoned="rerun")
    return safe.guard(given, work) if mode == "sync" else await safe.aguard(given, work)


sync_and_async = pytest.mark.parametrize("mode", ["sync", "async"])


@sync_and_async
async def test_taken_over_meanwhile(still: Still, mode: str) -> None:
    work, still.meanwhile = Work(), still.take_over
    with pytest.raises(LeaseLost):
        await guarded(still, mode, work)
    assert (work.seen, still.seen) == ([], [Claim, Renew, Withdraw])
    (record,) = still.memory._records.values()
    assert (record.state, record.attempt) == (State.CLAIMED, 2), "the other one's, untouched"


@sync_and_async
async def test_still_its_own(still: Still, mode: str) -> None:
    work = Work()
    ended = await guarded(still, mode, work)
    assert (ended.replayed, len(work.seen)) == (False, 1)
    assert still.seen[:2] == [Claim, Renew]


@sync_and_async
async def test_nobody_can_tell(still: Still, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not begun, so it is given back: nobody has to wonder."""
    monkeypatch.setattr("retrysafe.engine.resending.RESEND_DELAYS_SECONDS", (0.0, 0.0, 0.0, 0.0))
    work, still.down = Work(), Renew
    with pytest.raises(StoreUnavailable):
        await guarded(still, mode, work)
    (record,) = still.memory._records.values()
    assert (work.seen, record.state) == ([], State.RELEASED)
