"""Work that is still under way when a store is closed, and what a cancelled caller learns about its operation."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from retrysafe import KeyRing, Policy, RetrySafe
from retrysafe.core.ops import Claim, Complete, Op, Withdraw
from retrysafe.core.states import State
from retrysafe.engine import aperform
from retrysafe.testing import builders
from tests.unit.engine.gates import PATIENCE, AsyncWatched, Gate, Watched
from tests.unit.engine.hands import Work, task

R = TypeVar("R")


# A completion whose caller was cancelled ----------------------------------------------------------


async def test_a_completion_is_sealed_once_for_all_its_sendings() -> None:
    """Encrypted anew, it would be another answer under the same fence: refused, and reported as a lost lease."""
    store, work, gate = AsyncWatched(), Work(), Gate()
    store.gates[Complete] = gate
    safe = RetrySafe(async_store=store, keyring=KeyRing({"2026-11": b"k" * 32}))
    caller = asyncio.create_task(safe.aguard(task(), work))
    await gate.reached.wait()  # stored; its reply is on the way
    caller.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await caller
    assert raised.value.__cause__ is None
    first, again = [op for op in store.watched.seen if isinstance(op, Complete)]
    assert first == again
    assert (safe.counters["completed"], safe.counters.get("lease_lost")) == (1, None)
    assert (await safe.aguard(task(), work)).replayed
    await safe.aclose()


# Claims that are being given back -----------------------------------------------------------------


class Held(AsyncWatched):
    """The first claim is on its way, and stays there until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled, self.let_go = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def execute(self, op: Op[R]) -> R:
        if isinstance(op, Claim) and not self.stalled.is_set():
            self.stalled.set()
            await self.let_go.wait()
        for _ in range(10):  # as on a real one nothing is answered at once
            await asyncio.sleep(0)
        assert not self.closed, f"{type(op).__name__} was under way when the store was closed"
        return await super().execute(op)

    async def aclose(self) -> None:
        self.closed = True

    async def left_by_a_waiter(self, safe: RetrySafe) -> None:
        """A caller gets "busy" and leaves; its first sending is still under way when the owner releases the key."""
        held = self.watched.inner.execute(builders.claim("k", scope="tenant", body=b"same", now=None))
        caller = asyncio.create_task(safe.aguard(task(Policy(busy="wait", wait=60)), Work()))
        await self.stalled.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert self.watched.inner.execute(builders.release(held, now=None))


async def test_closing_waits_for_what_is_being_given_back() -> None:
    store = Held()
    safe = RetrySafe(async_store=store)
    await store.left_by_a_waiter(safe)
    closing = asyncio.create_task(safe.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    store.let_go.set()
    async with asyncio.timeout(PATIENCE):
        await closing
    (record,) = store.watched.inner._records.values()
    assert (record.state, record.attempt, store.closed) == (State.RELEASED, 2, True)


async def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aperform, "CLOSE_TIMEOUT_SECONDS", 0.01)
    store = Held()
    safe = RetrySafe(async_store=store)
    await store.left_by_a_waiter(safe)
    async with asyncio.timeout(PATIENCE):
        await safe.aclose()
    assert (store.closed, safe.async_performer()._detached) == (True, set())


# A child that closes what it inherited ------------------------------------------------------------


def in_a_child(work: Callable[[], Any]) -> None:
    """It must end by itself: a child that hangs is ended by the system, and the test fails."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def held_by_another_thread(lock: Any) -> Iterator[None]:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    yield
    over.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("whose", ["heartbeat", "probe", "leftovers"])
def test_a_child_that_closes_is_not_stuck_on_a_lock_the_parent_held(whose: str) -> None:
    safe = RetrySafe(Watched())
    performer = safe.performer()
    locks: dict[str, Any] = {
        "heartbeat": safe._heartbeat._changed,
        # Of the Events that their threads wait for.
        "probe": performer._probe._stopped._cond,  # type: ignore[attr-defined]
        "leftovers": performer._orphaned_claims._stop._cond,  # type: ignore[attr-defined]
    }
    with held_by_another_thread(locks[whose]):
        in_a_child(safe.close)
    safe.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_gives_back_what_it_gave_up_although_its_parent_had_a_thread_for_it() -> None:
    store = Watched()
    safe = RetrySafe(store)
    busy, go = threading.Event(), threading.Event()
    leftovers = safe.performer()._orphaned_claims

    def wait_here(op: Any) -> None:
        busy.set()
        assert go.wait(PATIENCE)

    store.before = wait_here
    leftovers.add(builders.claim("parent's", now=None))
    assert busy.wait(PATIENCE)

    def give_back() -> None:
        store.before = lambda op: None
        leftovers.add(builders.claim("child's", now=None))
        store.wait_for(Withdraw, 1)

    in_a_child(give_back)
    go.set()
    safe.close()
