"""Claims that were given up unheard are given back, so that no key becomes uncertain although nothing ran (I32)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeVar

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, Lookup, Op, Suspect
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine import orphaned_claims, resending
from retrysafe.engine.circuit import TRIAL_CLAIM_SECONDS, CircuitBreaker
from retrysafe.engine.heartbeat import Heartbeat
from retrysafe.errors import StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.policy import Policy
from retrysafe.testing import builders
from tests.unit.engine.gates import PATIENCE, AsyncWatched, Watched
from tests.unit.engine.hands import Work, task
from tests.waiting import until as settled

R = TypeVar("R")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(orphaned_claims, "ORPHAN_RESEND_SECONDS", (0.01,))
    monkeypatch.setattr(orphaned_claims, "ORPHAN_LOOKUP_SECONDS", (0.01, 0.01))


class Frozen(Watched):
    """Hangs: what it is sent stays in its buffer, and is carried out when it wakes."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = True
        self.buffer: list[Op[Any]] = []

    def execute(self, op: Op[R]) -> R:
        if self.asleep:
            self.buffer.append(op)
            raise StoreUnclear("no reply in time")
        return super().execute(op)

    def wake(self) -> None:
        """Late copies first, as a server does that was stopped."""
        self.asleep = False
        for op in self.buffer:
            self.inner.execute(op)


def record(store: Watched) -> Record | None:
    return store.inner.execute(Lookup(task().build_claim().id)).record


def is_free(store: Watched) -> bool:
    found = record(store)
    return found is not None and found.state is State.RELEASED


def test_a_store_that_hung_burns_no_key() -> None:
    """The caller got 503 and gave up. Later the store grants the claim, which has no caller any more."""
    store, work = Frozen(), Work()
    safe = RetrySafe(store)
    with pytest.raises(StoreUnclear):
        safe.guard(task(), work)
    store.wake()
    settled(lambda: is_free(store), PATIENCE, "the claim to be given back")
    for op in store.buffer:
        assert store.inner.execute(op).granted is False, "its token has ended: no copy is granted any more"
    assert not safe.guard(task(), work).replayed
    assert len(work.seen) == 1
    safe.close()


async def test_a_store_that_hung_burns_no_key_async() -> None:
    store, work = Frozen(), Work()
    awaited = AsyncWatched(store)
    awaited.execute = lambda op: asyncio.to_thread(store.execute, op)  # type: ignore[method-assign,assignment]
    safe = RetrySafe(async_store=awaited)
    with pytest.raises(StoreUnclear):
        await safe.aguard(task(), work)
    store.wake()
    async with asyncio.timeout(PATIENCE):
        while not is_free(store):
            await asyncio.sleep(0.001)
    assert not (await safe.aguard(task(), work)).replayed
    assert len(work.seen) == 1
    await safe.aclose()


def test_a_key_that_somebody_else_has_is_looked_at_again() -> None:
    story = orphaned_claims.release_orphaned(claim := task().build_claim())
    other = Watched()
    held = other.inner.execute(builders.claim("k", scope="tenant", body=b"same", now=None))
    assert next(story) is claim
    assert isinstance(story.send(other.inner.execute(claim)), float)
    look = story.send(None)
    assert isinstance(look, Lookup)
    other.inner.execute(builders.release(held, now=None))
    other.inner.execute(claim)  # the copy that was under way
    released = story.send(other.inner.execute(look))
    assert isinstance(released, Op)
    assert other.inner.execute(released) is True
    with pytest.raises(StopIteration):
        story.send(True)


def test_a_store_that_stays_away_is_given_up_in_the_end() -> None:
    story = orphaned_claims.release_orphaned(task().build_claim())
    asked: Any = next(story)
    tries = 0
    while asked is not None:
        tries += isinstance(asked, Op)
        try:
            asked = story.throw(StoreUnavailable("away")) if isinstance(asked, Op) else story.send(None)
        except StopIteration:
            asked = None
    assert tries == orphaned_claims.MAX_ORPHAN_SENDS


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), TimeoutError("a time limit by signal")], ids=repr)
def test_a_caller_that_is_interrupted_while_it_claims_gives_the_key_back(stop: BaseException) -> None:
    store, work = Watched(), Work()

    class Interrupted(Watched):
        def execute(self, op: Op[R]) -> R:
            reply = store.execute(op)
            if isinstance(op, Claim) and store.count(Claim) == 1:
                raise stop
            return reply

    safe = RetrySafe(Interrupted())
    with pytest.raises(type(stop)):
        safe.guard(task(), work)
    settled(lambda: is_free(store), PATIENCE, "the claim to be given back")
    assert work.seen == []
    safe.close()


def test_a_claim_that_the_sweeper_met_before_its_owner_heard_of_it_is_its_owner_s() -> None:
    """Granted, its reply lost, lapsed and swept: its owner knows that nothing ran, and may run it."""
    store, work = Watched(), Work()
    lost: list[int] = []

    class Lossy(Watched):
        def execute(self, op: Op[R]) -> R:
            reply = store.execute(op)
            if isinstance(op, Claim) and not lost:
                lost.append(1)
                (found,) = store.inner._records.values()
                store.inner._records[found.id] = found._replace(lease_until=found.started)
                assert store.inner.execute(Suspect(found.id, found.fence, "swept", True))
                raise StoreUnclear("its reply was lost")
            return reply

    safe = RetrySafe(Lossy())
    assert not safe.guard(task(Policy()), work).replayed
    assert len(work.seen) == 1
    found = record(store)
    assert found is not None
    assert (found.state, found.attempt) == (State.COMPLETED, 1)
    safe.close()


def test_while_the_store_is_away_a_claim_goes_through_now_and_then() -> None:
    """The probe may have ended with its event loop: without this the store would be away for ever."""
    circuit, claim = CircuitBreaker(), task().build_claim()
    circuit.record_failure(claim, StoreUnreachable("refused"), 100.0)
    assert circuit.refusal_error(claim, 100.0 + TRIAL_CLAIM_SECONDS - 0.1) is not None
    assert circuit.refusal_error(claim, 100.0 + TRIAL_CLAIM_SECONDS) is None
    assert circuit.refusal_error(claim, 100.0 + TRIAL_CLAIM_SECONDS + 0.1) is not None
    assert circuit.refusal_error(claim, 100.0 + 2 * TRIAL_CLAIM_SECONDS) is None


def test_a_moment_without_threads_does_not_end_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher died with the beat that found no thread, and every later call of the process ran without beats."""
    store = Watched()
    beats = Heartbeat(lambda: store, lambda name, record_id: None)
    held = builders.record_of(store.inner.execute(builders.claim("k", lease=600, now=None)))
    start, refused = threading.Thread.start, threading.Event()

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "retrysafe-beat" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_left)
    from retrysafe.core.ops import Renew
    from retrysafe.engine.clock import clock
    from retrysafe.engine.heartbeat import Lease

    lease = Lease(held.id, "k", held.fence, clock() + 0.01)
    stop = beats.start(lease, 0.3)
    assert refused.wait(PATIENCE)
    store.wait_for(Renew, 2)
    stop()
    beats.stop()
