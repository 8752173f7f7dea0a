"""MySQL and MariaDB: renewals leave locked rows out, and are sent once more after a short pause (I33)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused, LockNotAvailable
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.mysql import aio, renewals, sync
from retrysafe.stores.mysql.batches import Quoted
from retrysafe.stores.mysql.dialect import DIALECT, parse_url
from retrysafe.stores.mysql.sync import MysqlStore
from retrysafe.stores.sql.batches import HELD
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, record_of, renew, suspect
from tests.opening import COLOURS, open_do
from tests.stores.locked_rows import WAIT_SECONDS, LockedRows, build_rows
from tests.waiting import until

SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]
OnPause = Callable[[Callable[[], object]], list[float]]


@pytest.fixture(params=SERVERS)
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockedRows]:
    with build_rows(request, monkeypatch, request.param) as made:
        yield made


@pytest.fixture(params=COLOURS)
def do(request: pytest.FixtureRequest, rows: LockedRows) -> Iterator[Do]:
    opened = open_do(rows.url, request.param)
    yield opened
    opened.close()


@pytest.fixture
def on_pause(monkeypatch: pytest.MonkeyPatch) -> OnPause:
    """Instead of each pause of a store, something is done. The pauses are noted."""

    def do_instead(what: Callable[[], object]) -> list[float]:
        noted: list[float] = []

        def pause(seconds: float) -> None:
            noted.append(seconds)
            what()

        async def apause(seconds: float) -> None:
            pause(seconds)

        monkeypatch.setattr(sync, "time", SimpleNamespace(sleep=pause))
        monkeypatch.setattr(aio, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": apause}))
        return noted

    return do_instead


def longer(owner: Any, lease: float = 900) -> Op[Any]:
    """A renewal that has to write: the lease is longer than the one there is."""
    return renew(owner, lease=lease, now=None)


def lease_until(do: Do, key: str) -> int:
    return record_of(do(lookup(key, now=None))).lease_until


def test_a_lock_that_ends_soon_is_waited_for(rows: LockedRows, do: Do, on_pause: OnPause) -> None:
    """Another write of the same owner has it, often."""
    held, free = rows.claim_all(2)
    with rows.locked(held) as other:
        noted = on_pause(other.let_go)
        assert do(longer(held, 3)) is True, "three seconds it has"
        assert not noted
        assert do(longer(held)) is True
        assert noted == [0.1]
    with rows.locked(held) as other:
        noted = on_pause(other.let_go)
        assert do.many([longer(held, 1000), longer(free, 910)]) == [True, True]
        assert noted == [0.1], "one pause for all of them"
    assert lease_until(do, "k0") > lease_until(do, "k1")


def test_a_lock_that_stays_is_told_to_its_owner_alone(rows: LockedRows, do: Do, on_pause: OnPause) -> None:
    held, free, ended, taken, gave_up = rows.claim_all(5)
    do(complete(ended, now=None))
    do(suspect(gave_up, now=None))
    before = lease_until(do, "k0")
    zombie = taken._replace(attempt=7)
    nobody = record_of(MemoryStore().execute(claim("nobody")))
    noted = on_pause(lambda: None)
    with rows.locked(held, taken):
        with pytest.raises(StoreUnavailable, match="held by an open transaction"):
            do(longer(held))
        assert do(longer(zombie)) is False, "a lost lease is told at once, locked or not"
        with pytest.raises(BatchRefused) as refused:
            do.many([longer(each) for each in (zombie, held, ended, free, gave_up, nobody)])
        first, second, *others = refused.value.replies
        assert first is False
        assert isinstance(second, StoreUnavailable)
        assert others == [False, True, False, False]
        assert noted == [0.1, 0.1]
        assert lease_until(do, "k0") == before
    assert do.many([longer(held), longer(taken)]) == [True, True]
    assert lease_until(do, "k0") > before


def test_no_connection_for_the_second_sending(rows: LockedRows, on_pause: OnPause) -> None:
    """What was renewed stays so, and nobody is told that nothing happened; unless nothing did."""
    held, free = rows.claim_all(2)
    store = MysqlStore.from_url(parse_url(rows.url)._replace(pool=1, pool_timeout=0.01))
    with rows.locked(held):
        for ops, error in (([held, free], StoreUnclear), ([held], StoreUnavailable)):
            with ExitStack() as taken:
                on_pause(lambda taken=taken: taken.enter_context(store._pool.connection("renewal")))
                with pytest.raises(error):
                    store.execute_many([longer(each) for each in ops])
    found = record_of(store.execute(lookup("k1", now=None)))
    assert found.lease_until > free.lease_until
    store.close()


def test_a_batch_does_not_wait_with_the_rows_of_others_locked(rows: LockedRows, do: Do) -> None:
    """A completion waited for its row in a batch, which had locked the row of another call. That call's lease could not
    be renewed meanwhile, and was lost."""
    held, *others = rows.claim_all(5)
    ops = [complete(each, now=None) for each in (held, *others)]
    with ThreadPoolExecutor(1) as threads, rows.locked(held):
        refused = threads.submit(do.many, ops)
        until(refused.done, WAIT_SECONDS / 2, "the refusal of the batch")
        with pytest.raises(BatchRefused):
            refused.result()
        assert do.many([longer(each) for each in others]) == [True] * 4
    assert do.many(ops) == [True] * 5


@pytest.mark.parametrize(("leases", "pause"), [([0.1], 0.005), ([2], 0.01), ([600, 4], 0.02), ([600], 0.1)])
def test_the_pause_is_a_small_part_of_the_shortest_lease(leases: list[float], pause: float) -> None:
    owned = record_of(MemoryStore().execute(claim("owned")))
    assert renewals.compute_pause([renew(owned, lease=lease) for lease in leases]) == pytest.approx(pause)


def test_a_lock_that_skip_locked_does_not_see_counts_as_a_locked_row() -> None:
    owned = record_of(MemoryStore().execute(claim("owned")))
    texts = SqlPlans(DIALECT, build_names("t")).texts
    plan = renewals.plan_renewals(texts, [renew(owned)], Quoted(repr))
    next(plan)
    with pytest.raises(StopIteration) as done:
        plan.throw(LockNotAvailable("1205"))
    assert done.value.value == [HELD]
