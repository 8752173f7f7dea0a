"""A caller was cancelled, and the second sending of its claim met a store that was away: nothing was done by that one.
The first sending may have been granted all the same, or may be granted later. It is followed up (I32)."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, Op
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine import orphaned_claims, resending
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.testing import builders
from tests.unit.engine.gates import PATIENCE, AsyncWatched
from tests.unit.engine.hands import Work, task

R = TypeVar("R")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(orphaned_claims, "ORPHAN_RESEND_SECONDS", (0.01,))
    monkeypatch.setattr(orphaned_claims, "ORPHAN_LOOKUP_SECONDS", (0.01, 0.01))


class Losing(AsyncWatched):
    """Carries the first claim out, and does not answer it until it is told to fail. The second one it refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.fail = asyncio.Event(), asyncio.Event()
        self.claims = 0

    async def execute(self, op: Op[R]) -> R:
        if isinstance(op, Claim):
            self.claims += 1
            if self.claims == 2:
                raise StoreUnavailable("it cannot be reached")
        reply = await super().execute(op)
        if isinstance(op, Claim) and self.claims == 1:
            self.sent.set()
            await self.fail.wait()
            raise StoreUnclear("its reply was lost")
        return reply

    def read_record(self) -> Record:
        (record,) = self.watched.inner._records.values()
        return record


class Submitting(Losing):
    """Submits without a coroutine of the caller's."""

    async def execute(self, op: Op[R]) -> R:
        return await super().execute(op)

    def submit(self, op: Op[Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.execute(op))


class InOrderSubmitting(Submitting):
    """Keeps the order of what it is sent: the first sending ends with its caller."""

    in_order = True


@pytest.mark.parametrize("kind", [Losing, Submitting, InOrderSubmitting], ids=["executed", "submitted", "in order"])
async def test_a_cancelled_claim_that_was_granted_unheard_is_withdrawn(kind: type[Losing]) -> None:
    """STRAIGHT seeds 148, 185, 255, 269 and 380: an operator was asked about a call that never began."""
    store, work = kind(), Work()
    safe = RetrySafe(async_store=store)
    caller = asyncio.ensure_future(safe.aguard(task(), work))
    async with asyncio.timeout(PATIENCE):
        await store.sent.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert store.claims >= 2
        store.fail.set()
        while store.read_record().state is not State.RELEASED:
            await asyncio.sleep(0.001)
    await safe.aclose()
    assert work.seen == []


async def test_a_claim_under_which_nothing_ran_leaves_its_key_to_any_request() -> None:
    """As if it had never been made (I37): the retry may be redirected, and then its key comes with another path."""
    store = Submitting()
    safe = RetrySafe(async_store=store)
    caller = asyncio.ensure_future(safe.aguard(task(), Work()))
    async with asyncio.timeout(PATIENCE):
        await store.sent.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        store.fail.set()
        while store.read_record().state is not State.RELEASED:
            await asyncio.sleep(0.001)
    await safe.aclose()
    other = store.watched.inner.execute(builders.claim("k", scope="tenant", body=b"another", now=None))
    assert other.granted
    assert builders.record_of(other).attempt == 1
