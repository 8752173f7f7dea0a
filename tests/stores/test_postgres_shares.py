"""What only PostgreSQL has: a short wait for a lock, a connection for renewals, pools of the user (I33). What all
servers have is in test_shares.py."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg_pool import ConnectionPool, PoolTimeout

from retrysafe.stores.base import BatchRefused
from retrysafe.stores.postgres.dialect import parse_url
from retrysafe.stores.postgres.errors import no_share_error
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.stores.sql.shares import Shares
from retrysafe.testing.builders import claim, complete, renew
from tests.stores.locked_rows import LONG, POOL, LockedRows, build_rows
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

HELD = 12


@pytest.fixture
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockedRows]:
    with build_rows(request, monkeypatch, "postgres") as made:
        yield made


def open_sync(rows: LockedRows) -> PostgresStore:
    return PostgresStore.from_url(parse_url(rows.url))


def test_a_renewal_in_a_batch_waits_for_a_moment(rows: LockedRows) -> None:
    """A lock that ends soon is waited for: another write of the same owner has it, often."""
    held, free = rows.claim_all(2)
    store = open_sync(rows)
    with ThreadPoolExecutor(1) as threads, rows.locked(held) as other:
        # 100 ms are too short for a busy machine: as often as it takes.
        for _ in range(100):
            replies = threads.submit(renew_both, store, held, free)
            until(lambda: replies.done() or rows.count_waiting() > 0, 60, "a renewal that waits")  # noqa: B023
            other.let_go()
            if replies.result(60) == [True, True]:
                break
            other.lock(rows.table, [held.id])
        else:
            pytest.fail("it never waited")
    store.close()


def renew_both(store: PostgresStore, *records: Any) -> list[Any]:
    try:
        return store.execute_many([renew(each, now=None) for each in records])
    except BatchRefused as refused:
        return list(refused.replies)


def test_after_a_renewal_a_connection_is_kept_for_renewals(rows: LockedRows) -> None:
    (record,) = rows.claim_all(1)
    store = open_sync(rows)
    for _ in range(3):
        assert store.execute(renew(record, now=None)) is True
        assert len(store._lines._for_renewals) == 1
    store.execute(claim("other", now=None))
    assert len(store._lines._for_renewals) == 1
    store.close()
    assert not store._lines._for_renewals


def test_a_pool_of_the_user_has_shares_too(rows: LockedRows) -> None:
    *held, free = rows.claim_all(HELD + 1)
    plain, names = rows.url.partition("?")[0], parse_url(rows.url).names
    with ConnectionPool(plain, min_size=1, max_size=POOL, timeout=60, open=True) as pool:
        store = PostgresStore(pool, table=names.bare)
        store._plans = SqlPlans(LONG, names)
        with ThreadPoolExecutor(HELD) as threads:
            with rows.locked(*held):
                waiting = [threads.submit(store.execute, complete(each, now=None)) for each in held]
                until(lambda: rows.count_waiting() >= 2, 60, "completions that wait")
                assert store.execute(renew(free, now=None)) is True
                assert not any(each.done() for each in waiting)
            assert [each.result(60) for each in waiting] == [True] * HELD
        store.close()


def test_the_error_of_a_share_names_the_use_and_the_size() -> None:
    shares = Shares(2, 0.01, no_share_error)
    shares.enter("alone")
    with pytest.raises(PoolTimeout, match=r"this use \(batch\) may have of 2 were in use for 0\.01 s"):
        shares.enter("batch")
