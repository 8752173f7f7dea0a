"""At the edge: unclear replies are asked for again, and a cancelled caller still settles what it holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, Complete, Lookup, Suspect, Withdraw
from retrysafe.core.states import State
from retrysafe.engine import aperform, resending
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.policy import Policy
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.testing import AsyncFaultStore, Fault, FaultStore
from tests.unit.engine.gates import AsyncWatched, Gate, Watched
from tests.unit.engine.hands import Work, task

APPLIED = [Fault(1, "applied", only=Claim), Fault(1, "applied", only=Complete)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0, 0.0, 0.0, 0.0))


def test_a_lost_reply_is_asked_for_again() -> None:
    """Claim and complete were both applied and both replies lost: it still runs once and completes."""
    store, work = FaultStore(MemoryStore(), APPLIED), Work()
    ended = RetrySafe(store).guard(task(), work)
    assert (ended.replayed, len(work.seen)) == (False, 1)
    assert store.script.seen == [Claim, Claim, Complete, Complete]


async def test_a_lost_reply_is_asked_for_again_async() -> None:
    store, work = AsyncFaultStore(AsyncMemoryStore(), APPLIED), Work()
    ended = await RetrySafe(async_store=store).aguard(task(), work)
    assert (ended.replayed, len(work.seen)) == (False, 1)
    assert store.script.seen == [Claim, Claim, Complete, Complete]


def silent(op: Any) -> None:
    raise StoreUnclear("no word")


def down(op: Any) -> None:
    raise StoreUnavailable("not there")


def counted(store: Watched) -> list[Any]:
    tried: list[Any] = []
    fails = store.before

    def before(op: Any) -> None:
        tried.append(op)
        fails(op)

    store.before = before
    return tried


async def test_a_store_that_stays_silent_is_reported_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.0)
    for mode in ("sync", "async"):
        store, work = Watched(silent), Work()
        tried = counted(store)
        safe = RetrySafe(store, async_store=AsyncWatched(store))
        with pytest.raises(StoreUnclear, match="no word"):
            safe.guard(task(), work) if mode == "sync" else await safe.aguard(task(), work)
        safe.close()
        assert len(tried) >= 2, "sent again, and once more in the background after it was given up"
        assert len({op.token for op in tried}) == 1, "each time the same claim, or it would not know itself again"
        assert work.seen == []


async def test_a_store_that_says_no_is_not_asked_again() -> None:
    for mode in ("sync", "async"):
        store = Watched(down)
        tried = counted(store)
        safe = RetrySafe(store, async_store=AsyncWatched(store))
        with pytest.raises(StoreUnavailable, match="not there"):
            safe.guard(task(), Work()) if mode == "sync" else await safe.aguard(task(), Work())
        assert len(tried) == 1


async def test_execute_is_sent_again_too() -> None:
    lookup = Lookup(b"i" * 32)
    for mode in ("sync", "async"):
        script = [Fault(1, "applied")]
        sync_store = FaultStore(MemoryStore(), script)
        async_store = AsyncFaultStore(AsyncMemoryStore(), script)
        safe = RetrySafe(sync_store, async_store=async_store)
        reply = safe.execute(lookup) if mode == "sync" else await safe.aexecute(lookup)
        assert reply.record is None


# Cancelled callers -------------------------------------------------------------------------------


class Slow(Work):
    """A handler that signals its begin and ends on a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go = asyncio.Event(), asyncio.Event()

    def call(self, record: Any) -> Any:
        self.seen.append(record)
        return self._run()

    async def _run(self) -> str:
        self.began.set()
        await self.go.wait()
        return "done"


def state(store: AsyncWatched) -> State:
    record = store.watched.inner.execute(Lookup(task().build_claim().id)).record
    assert record is not None
    return record.state


async def test_cancelled_while_claiming_gives_the_key_back_and_never_runs() -> None:
    store, work, gate = AsyncWatched(), Slow(), Gate()
    store.gates[Claim] = gate
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(), work))
    await gate.reached.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.seen == []
    assert state(store) is State.RELEASED
    assert [type(op) for op in store.watched.seen] == [Claim, Claim, Withdraw]


async def test_cancelled_while_completing_is_completed() -> None:
    store, work, gate = AsyncWatched(), Slow(), Gate()
    store.gates[Complete] = gate
    work.go.set()
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(), work))
    await gate.reached.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert state(store) is State.COMPLETED


@pytest.mark.parametrize(("abandoned", "left"), [("uncertain", State.UNCERTAIN), ("rerun", State.RELEASED)])
async def test_cancelled_half_way_is_written_down(abandoned: Any, left: State) -> None:
    store, work = AsyncWatched(), Slow()
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(abandoned=abandoned), work))
    await work.began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert state(store) is left


async def test_cancelled_again_while_giving_back_still_gives_back() -> None:
    """I29: repeated cancels do not cut the settling short."""
    store, work, gate = AsyncWatched(), Slow(), Gate()
    store.gates[Suspect] = gate
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(), work))
    await work.began.wait()
    caller.cancel()
    await gate.reached.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert state(store) is State.UNCERTAIN


async def test_a_store_that_never_answers_does_not_hold_a_cancelled_caller_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aperform, "CANCEL_TIMEOUT_SECONDS", 0.02)
    store = AsyncWatched()

    class Never(Gate):
        async def passed(self) -> None:
            self.reached.set()
            await self.opened.wait()

    gate = store.gates[Claim] = Never()
    caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(), Slow()))
    await gate.reached.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await caller
    assert "did not answer" in str(raised.value.__cause__)


async def test_cancelled_at_every_await_of_a_guarded_call() -> None:
    """L2: wherever the cancellation lands, the record tells the truth and the key is not held by the dead."""
    for landing in range(20):
        store = AsyncWatched()
        for kind in (Claim, Complete):
            store.gates[kind] = _Yielding()
        work = _Counting()
        caller = asyncio.create_task(RetrySafe(async_store=store).aguard(task(Policy()), work))
        for _ in range(landing):
            await asyncio.sleep(0)
        cancelled = caller.cancel()
        [result] = await asyncio.gather(caller, return_exceptions=True)
        record = store.watched.inner.execute(Lookup(task().build_claim().id)).record
        if record is None:
            assert work.begun == 0
        elif work.finished:
            assert record.state is State.COMPLETED
        elif work.begun:
            assert record.state is State.UNCERTAIN
        else:
            assert record.state is State.RELEASED
        assert isinstance(result, asyncio.CancelledError) or not cancelled or record is not None


class _Yielding(Gate):
    async def passed(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


class _Counting(Work):
    def __init__(self) -> None:
        super().__init__()
        self.begun = self.finished = 0

    def call(self, record: Any) -> Any:
        return self._run()

    async def _run(self) -> str:
        self.begun += 1
        for _ in range(3):
            await asyncio.sleep(0)
        self.finished += 1
        return "done"
