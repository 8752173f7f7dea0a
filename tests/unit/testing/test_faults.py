"""The fault injector: it fails where the script says, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from retrysafe.core.ops import Claim, Complete
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.testing import AsyncFaultStore, Crashed, Do, Fault, FaultStore, Script
from retrysafe.testing.builders import claim, complete, lookup

Play = Callable[..., tuple[Do, Script]]


@pytest.fixture(params=["sync", "async"])
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """A store with these faults, sync or async."""
    opened: list[Do] = []

    def start(*faults: Fault) -> tuple[Do, Script]:
        script = Script(faults)
        if request.param == "sync":
            do = Do.sync(FaultStore(MemoryStore(), script))
        else:
            do = Do.asynchronous(AsyncFaultStore(AsyncMemoryStore(), script))
        opened.append(do)
        return do, script

    yield start
    for do in opened:
        do.close()


def test_without_faults_it_only_counts(play: Play) -> None:
    do, script = play()
    owner = do(claim("k"))
    assert do.many([complete(owner), lookup("k")])[0] is True
    assert script.calls == 2
    assert script.seen[:2] == [Claim, Complete]


def test_before_means_not_applied(play: Play) -> None:
    do, _ = play(Fault(1, "before"))
    with pytest.raises(StoreUnavailable) as raised:
        do(claim("k"))
    assert not isinstance(raised.value, StoreUnclear)
    assert do(lookup("k")).record is None


def test_applied_means_done_and_unclear(play: Play) -> None:
    """I11: sent again, the claim recognises itself."""
    do, _ = play(Fault(1, "applied"))
    op = claim("k")
    with pytest.raises(StoreUnclear):
        do(op)
    assert do(op).granted


def test_after_means_the_caller_died_with_the_reply_in_hand(play: Play) -> None:
    do, _ = play(Fault(1, "after"))
    with pytest.raises(Crashed):
        do(claim("k"))
    assert do.record("k").attempt == 1


def test_the_nth_call_of_a_kind(play: Play) -> None:
    do, _ = play(Fault(2, "before", only=Claim))
    owner = do(claim("a"))
    assert do(complete(owner)) is True
    with pytest.raises(StoreUnavailable):
        do(claim("b"))
    assert do(claim("b")).granted


def test_every_fault_counts_every_call(play: Play) -> None:
    do, _ = play(Fault(1, "before"), Fault(2, "before"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            do(lookup("k"))
    assert do(lookup("k")).record is None


def test_lasting_goes_on_until_repaired(play: Play) -> None:
    do, script = play(Fault(2, "applied", lasting=True))
    do(claim("a"))
    with pytest.raises(StoreUnclear):
        do(claim("b"))
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            do(lookup("b"))
    script.repair()
    assert do.record("b").attempt == 1


def test_a_crash_lasts_if_it_was_told_to(play: Play) -> None:
    do, script = play(Fault(1, "before", crash=True, lasting=True))
    for _ in range(2):
        with pytest.raises(Crashed):
            do.many([claim("a")])
    script.repair()
    assert do(lookup("a")).record is None


# Delayed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [0, 1, 2])
def test_delayed_means_applied_behind_a_later_call(play: Play, later: int) -> None:
    do, script = play(Fault(1, "delayed", later=later))
    with pytest.raises(StoreUnclear):
        do(claim("k"))
    for _ in range(later + 1):
        assert do(lookup("k")).record is None
    assert do.record("k").attempt == 1
    assert script.calls == later + 3, "nobody sent the copy: it is no call"


def test_a_delayed_call_comes_in_behind_one_that_fails(play: Play) -> None:
    do, _ = play(Fault(1, "delayed"), Fault(2, "before"))
    for trouble in (StoreUnclear, StoreUnavailable):
        with pytest.raises(trouble):
            do(claim("k"))
    assert do.record("k").attempt == 1


def test_a_delayed_batch_is_one_message(play: Play) -> None:
    do, _ = play(Fault(1, "delayed", only=Claim))
    with pytest.raises(StoreUnclear):
        do.many([claim("a"), claim("b")])
    assert do(lookup("a")).record is None
    assert do.record("a").attempt == do.record("b").attempt == 1


def test_a_delayed_copy_may_change_nothing(play: Play) -> None:
    """No caller gets the reply of a late message, not even a refusal."""
    do, _ = play(Fault(1, "delayed", only=Complete))
    owner = do(claim("k"))
    with pytest.raises(StoreUnclear):
        do(complete(owner, b"first"))
    assert do(complete(owner, b"second")) is True
    answer = do.record("k").answer
    assert answer is not None
    assert answer.body == b"second"


def test_what_is_on_its_way_can_be_let_in() -> None:
    store = FaultStore(MemoryStore(), [Fault(1, "delayed", later=9)])
    with pytest.raises(StoreUnclear):
        store.execute(claim("k"))
    store.arrive()
    found = store.execute(lookup("k")).record
    assert found is not None
    assert store.script.pop_all_delayed() == []


async def test_what_is_on_its_way_can_be_let_in_async() -> None:
    store = AsyncFaultStore(AsyncMemoryStore(), [Fault(1, "delayed", later=9)])
    with pytest.raises(StoreUnclear):
        await store.execute(claim("k"))
    await store.arrive()
    assert (await store.execute(lookup("k"))).record is not None


def test_only_a_delayed_call_is_late() -> None:
    with pytest.raises(ValueError, match="needs the point 'delayed'"):
        Fault(1, "before", later=1)
