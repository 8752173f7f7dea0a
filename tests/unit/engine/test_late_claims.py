"""No claim is granted without a caller (I32): a claim that its caller gives up is released."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, ClaimReply, Complete, Lookup, Op, Release
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine import resending
from retrysafe.errors import InProgress, StoreUnavailable, StoreUnclear
from retrysafe.policy import Policy
from retrysafe.testing import builders
from tests.unit.engine.gates import PATIENCE, AsyncWatched, Watched
from tests.unit.engine.hands import Work, task

R = TypeVar("R")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)


class Stalling(AsyncWatched):
    """Holds the first claim back before it is applied: it is on its way, and arrives when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled, self.let_go, self.landed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.replies: list[Any] = []

    async def execute(self, op: Op[R]) -> R:
        first = isinstance(op, Claim) and not self.stalled.is_set()
        if first:
            self.stalled.set()
            await self.let_go.wait()
        reply = await super().execute(op)
        if first:
            self.replies.append(reply)
            self.landed.set()
        return reply

    def record(self) -> Record:
        found = self.watched.inner.execute(Lookup(task().build_claim().id)).record
        assert found is not None
        return found


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_cancelled_claim_whose_first_copy_lands_after_its_release() -> None:
    store, work = Stalling(), Work()
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(), work))
    await store.stalled.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert store.record().state is State.RELEASED
    store.let_go.set()
    await store.landed.wait()
    assert [reply.granted for reply in store.replies] == [False]
    assert (store.record().state, store.record().attempt, work.seen) == (State.RELEASED, 1, [])


async def test_a_leaving_waiter_s_last_look() -> None:
    """The caller gets "busy" and leaves. The owner releases the key, and a delayed copy of the claim is granted."""
    store, work = Stalling(), Work()
    held = store.watched.inner.execute(
        builders.claim("k", scope="tenant", body=b"same", on_lapse="uncertain", now=None)
    )
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(Policy(busy="wait", wait=60)), work))
    await store.stalled.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert store.watched.inner.execute(builders.release(held, now=None))
    store.let_go.set()
    await store.landed.wait()
    assert [reply.granted for reply in store.replies] == [True], "nobody waits for it, and it is granted"
    await until(lambda: store.record().state is State.RELEASED)
    assert (store.record().attempt, work.seen) == (2, [])


class Lossy(Watched):
    """Applies the first claim and loses the reply, then meets what `then` says."""

    def __init__(self, *then: Exception | ClaimReply) -> None:
        super().__init__()
        self._then: list[Any] = [StoreUnclear("its reply was lost"), *then]

    def execute(self, op: Op[R]) -> R:
        if not isinstance(op, Claim) or not self._then:
            return super().execute(op)
        met = self._then.pop(0)
        if isinstance(met, StoreUnclear):
            super().execute(op)
        if isinstance(met, Exception):
            raise met
        return met  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "then", [StoreUnavailable("connection refused"), ClaimReply(False, None, 0)], ids=["unavailable", "hidden"]
)
async def test_after_an_unclear_claim_the_truth_is_waited_for(then: Any, mode: str) -> None:
    """Its first sending was granted. "Connection refused" and "somebody holds it" are no answers to that."""
    store, work = Lossy(*[then] * 6), Work()
    async_store = AsyncWatched(store)
    async_store.execute = lambda op: asyncio.to_thread(store.execute, op)  # type: ignore[method-assign,assignment]
    safe = RetrySafe(store, async_store=async_store)
    ended = safe.guard(task(), work) if mode == "sync" else await safe.aguard(task(), work)
    assert (ended.replayed, len(work.seen)) == (False, 1)
    safe.close()


def test_a_claim_that_lapsed_before_it_was_recognised_takes_a_new_lease_first() -> None:
    """Rule 14: its reply came after the lease. What runs, runs under a lease."""
    store, work = Lossy(), Work()
    safe = RetrySafe(store)
    renewed: list[Record] = []

    def before(op: Any) -> None:
        records = store.inner._records
        for found in list(records.values()):
            if store.count(Claim) == 1 and not renewed:
                records[found.id] = found._replace(lease_until=found.started)  # its lease is over by now
                renewed.append(found)

    store.before = before
    assert not safe.guard(task(), work).replayed
    (seen,) = work.seen
    assert seen.lease_until > seen.started, "it was renewed before the call"
    assert [type(op).__name__ for op in store.seen] == ["Claim", "Claim", "Renew", "Claim", "Complete"]
    safe.close()


def test_a_claim_that_was_taken_over_before_it_was_recognised_begins_anew() -> None:
    """Another caller owns the key and works on it: the first token has ended, and a new one gets "busy"."""
    store, work = Lossy(), Work()
    safe = RetrySafe(store)
    stolen: list[Record] = []

    def before(op: Any) -> None:
        records = store.inner._records
        for found in list(records.values()):
            if store.count(Claim) == 1 and not stolen:
                records[found.id] = found._replace(attempt=2, token=b"x" * 16, ended=(found.token,))
                stolen.append(found)

    store.before = before
    with pytest.raises(InProgress):
        safe.guard(task(), work)
    tokens = [op.token for op in store.seen if isinstance(op, Claim)]
    assert (len(tokens), len(set(tokens)), work.seen) == (3, 2, [])
    safe.close()


# Settlements outlast an outage --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("error", [StoreUnavailable("down"), StoreUnclear("silent")], ids=["unavailable", "unclear"])
async def test_a_completion_outlasts_an_outage(mode: str, error: Exception) -> None:
    left = [6]

    def before(op: Any) -> None:
        if isinstance(op, Complete) and left[0]:
            left[0] -= 1
            raise error

    store, work = Watched(before), Work()
    safe = RetrySafe(store, async_store=AsyncWatched(store))
    ended = safe.guard(task(), work) if mode == "sync" else await safe.aguard(task(), work)
    assert (ended.replayed, len(work.seen), store.count(Complete)) == (False, 1, 1)
    assert safe.guard(task(), work).replayed
    safe.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_failed_call_is_released_after_an_outage(mode: str) -> None:
    left = [6]

    def before(op: Any) -> None:
        if isinstance(op, Release) and left[0]:
            left[0] -= 1
            raise StoreUnavailable("down")

    class Broken(Work):
        def call(self, record: Record) -> Any:
            super().call(record)
            raise ValueError("no")

    store = Watched(before)
    safe = RetrySafe(store, async_store=AsyncWatched(store))
    given = task(Policy(failures="release"))
    with pytest.raises(ValueError, match="no") as raised:
        safe.guard(given, Broken()) if mode == "sync" else await safe.aguard(given, Broken())
    assert getattr(raised.value, "__notes__", []) == []
    (record,) = store.inner._records.values()
    assert record.state is State.RELEASED
    safe.close()
