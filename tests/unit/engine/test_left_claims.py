"""A caller that leaves without its key leaves no grant behind, and none that a late copy of its claim may get (I32)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, ClaimReply, Lookup, Op, Release, Renew, Suspect, Withdraw
from retrysafe.core.outcomes import Busy
from retrysafe.core.records import MAX_ENDED_TOKENS, Record
from retrysafe.core.states import State
from retrysafe.engine import orphaned_claims, resending
from retrysafe.engine.effects import LeaveClaim
from retrysafe.engine.events import Events
from retrysafe.engine.guard import claim_or_wait
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import InProgress, StoreUnavailable, StoreUnclear
from retrysafe.policy import Policy
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing import builders
from tests.unit.engine.gates import PATIENCE, AsyncWatched, Watched
from tests.unit.engine.hands import Work, task
from tests.waiting import until as settled

R = TypeVar("R")
Call = Callable[[Watched, Work], None]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(orphaned_claims, "ORPHAN_RESEND_SECONDS", (0.01,))
    monkeypatch.setattr(orphaned_claims, "ORPHAN_LOOKUP_SECONDS", (0.01, 0.01))


def call_in_a_thread(store: Watched, work: Work) -> None:
    safe = RetrySafe(store)
    try:
        safe.guard(task(Policy()), work)
    finally:
        settled(lambda: store.count(Withdraw) > 0, PATIENCE, "the grant to be released")
        safe.close()


def call_on_a_loop(store: Watched, work: Work) -> None:
    async def execute(op: Op[Any]) -> Any:
        return store.execute(op)

    async def call() -> None:
        awaited = AsyncWatched(store)
        awaited.execute = execute  # type: ignore[method-assign,assignment]
        safe = RetrySafe(async_store=awaited)
        try:
            await safe.aguard(task(Policy()), work)
        finally:
            async with asyncio.timeout(PATIENCE):
                while not store.count(Withdraw):
                    await asyncio.sleep(0.001)
            await safe.aclose()

    asyncio.run(call())


@pytest.fixture(params=[call_in_a_thread, call_on_a_loop], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    found: Call = request.param
    return found


class Scripted(Watched):
    """`script(op, carry_out)` stands in front of each operation."""

    def __init__(self, script: Callable[[Op[Any], Callable[[], Any]], Any]) -> None:
        super().__init__()
        self.script = script

    def execute(self, op: Op[R]) -> R:
        reply: R = self.script(op, lambda: super(Scripted, self).execute(op))
        return reply


def find_record(store: Watched) -> Record:
    (found,) = store.inner._records.values()
    return found


def lapse(store: Watched, *, swept: bool) -> None:
    """The process was stopped for longer than its lease."""
    found = find_record(store)
    store.inner._records[found.id] = found._replace(lease_until=found.started)
    if swept:
        assert store.inner.execute(Suspect(found.id, found.fence, "swept", True))


def test_a_claim_that_was_swept_before_its_caller_gave_it_up_is_released(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Granted unheard, the process stopped for minutes, the sweeper marked the record, and the caller hears nothing: a
    person was asked about a call that never began (SHOP seed 2888756509)."""
    sent: list[int] = []

    def script(op: Op[Any], carry_out: Callable[[], Any]) -> Any:
        if not isinstance(op, Claim):
            return carry_out()
        sent.append(1)
        reply = carry_out()
        if len(sent) == 1:
            lapse(store, swept=True)
        if len(sent) <= 2:
            raise StoreUnclear("its reply was lost")
        return reply

    store, work = Scripted(script), Work()
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.0)
    with pytest.raises(StoreUnclear):
        call(store, work)
    assert find_record(store).state is State.RELEASED
    assert work.seen == []


@pytest.mark.parametrize("swept", [False, True], ids=["lapsed", "swept"])
@pytest.mark.parametrize("fails", [Renew, Claim], ids=["renewal", "claim"])
def test_an_owner_that_cannot_go_on_after_it_was_stopped_gives_the_key_back(
    call: Call, fails: type[Op[Any]], swept: bool
) -> None:
    """It recognised its claim, and the store refused what came next: the key was held, or marked, for a call that never
    began (SHOP seed 2925301501)."""
    claims: list[int] = []

    def script(op: Op[Any], carry_out: Callable[[], Any]) -> Any:
        if isinstance(op, Claim):
            claims.append(1)
            if len(claims) == 1:
                carry_out()
                lapse(store, swept=swept)
                raise StoreUnclear("its reply was lost")
        refused = isinstance(op, fails) and (fails is Renew or len(claims) > 2)
        if refused:
            raise StoreUnavailable("the disk is full")
        return carry_out()

    store, work = Scripted(script), Work()
    with pytest.raises(StoreUnavailable):
        call(store, work)
    assert find_record(store).state is State.RELEASED
    assert work.seen == []


def test_a_call_that_never_began_and_could_not_say_so_is_released_later(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped after the grant: its renewal fails, and so does the release, until the store is back."""
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(Lease, "fits", lambda self, seconds: False)
    back: list[int] = []

    def script(op: Op[Any], carry_out: Callable[[], Any]) -> Any:
        if isinstance(op, Lookup):
            back.append(1)
        if isinstance(op, Renew | Withdraw) and not back:
            raise StoreUnavailable("the disk is full")
        return carry_out()

    store, work = Scripted(script), Work()
    with pytest.raises(StoreUnavailable):
        call(store, work)
    assert find_record(store).state is State.RELEASED
    assert work.seen == []


def test_a_claim_that_was_refused_after_an_unclear_sending_is_followed_up(call: Call) -> None:
    """The copy of the first sending arrives when the other caller has released the key (SHOP seed 1008)."""
    late: list[Op[Any]] = []

    def script(op: Op[Any], carry_out: Callable[[], Any]) -> Any:
        if isinstance(op, Claim) and not late:
            late.append(op)
            raise StoreUnclear("it is still under way")
        if isinstance(op, Lookup) and find_record(store).fence == other.fence:
            assert store.inner.execute(Release(other.id, other.fence, "the other caller ended"))
            assert store.inner.execute(late[0]).granted
        return carry_out()

    store, work = Scripted(script), Work()
    other = builders.record_of(store.inner.execute(builders.claim("k", scope="tenant", body=b"same", now=None)))
    with pytest.raises(InProgress):
        call(store, work)
    found = find_record(store)
    assert (found.state, found.token) == (State.RELEASED, late[0].token)  # type: ignore[attr-defined]
    assert work.seen == []


def test_a_claim_that_was_refused_at_once_is_not_followed_up() -> None:
    """Nothing of it can be under way: no further operation is sent."""
    store = Watched()
    store.inner.execute(builders.claim("k", scope="tenant", body=b"same", now=None))
    safe = RetrySafe(store)
    with pytest.raises(InProgress):
        safe.guard(task(Policy()), Work())
    assert safe.performer()._orphaned_claims._thread is None
    assert store.count(Lookup) == 0
    safe.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
def test_a_caller_that_stops_waiting_leaves_its_claim(error: BaseException) -> None:
    """It waits for another caller, and one of its claims was not answered."""
    wanted = task(Policy(busy="wait", wait=30))
    flow = claim_or_wait(claim := wanted.build_claim(), wanted, Events())
    assert next(flow) is claim
    other = builders.record_of(Watched().inner.execute(builders.claim("k", scope="tenant", body=b"same")))
    flow.send(ClaimReply(False, other, other.started, 0.0, True))
    left = flow.throw(error)
    assert isinstance(left, LeaveClaim)
    assert (left.id, left.token) == (claim.id, claim.token)
    with pytest.raises(type(error)):
        flow.send(None)


def test_a_wait_that_ends_with_the_key_leaves_nothing() -> None:
    wanted = task(Policy(busy="wait", wait=30))
    store = Watched().inner
    other = builders.record_of(store.execute(builders.claim("k", scope="tenant", body=b"same", now=None)))
    flow = claim_or_wait(claim := wanted.build_claim(), wanted, Events())
    next(flow)
    flow.send(store.execute(claim)._replace(resent=True))
    store.execute(builders.release(other, now=None))
    assert flow.send(0.1) is claim, "the same token: its caller still waits"
    with pytest.raises(StopIteration) as ended:
        flow.send(store.execute(claim))
    assert not isinstance(ended.value.value, Busy)


def test_a_copy_is_released_that_is_granted_when_eight_others_have_left() -> None:
    """After an outage more than eight callers of one key had left, so its record had forgotten the token that was
    released first. A copy of that claim, which was still under way, was granted to nobody (STRAIGHT seed 50003069)."""
    store, claim = MemoryStore(), task().build_claim()
    flow = orphaned_claims.release_orphaned(claim)
    assert orphaned_claims.run_to_pause(flow, store.execute) is not None, "released, and looked for again"
    for _ in range(MAX_ENDED_TOKENS + 1):
        other = store.execute(task().build_claim())
        assert other.granted
        assert store.execute(builders.withdraw(other, now=None))
    assert store.execute(claim).granted, "a stranger, as decision 6 says"
    while orphaned_claims.run_to_pause(flow, store.execute) is not None:
        pass
    assert builders.record_of(store.execute(Lookup(claim.id))).state is State.RELEASED
