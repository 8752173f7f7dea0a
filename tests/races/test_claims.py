"""I1 at full speed: 200 claims at once for each key, and exactly one is told "yours"; once more for the takeover.

`RETRYSAFE_RACE_KEYS` says how many keys: 100 are 40,000 claims per store; `make proof` takes 1,000.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from retrysafe.stores.registry import open_async_store
from retrysafe.testing import Do, LoopThread
from retrysafe.testing.builders import claim, lookup, record_of
from tests.opening import REDIS_KIN, SHARED_STORES, open_migrated, store_url, with_option
from tests.races.racers import PROCESSES, THREADS, Grant, Race, run_race

KEYS = int(os.environ.get("RETRYSAFE_RACE_KEYS", "100"))
ASYNC_KEYS = max(1, KEYS // 20)
SHARE = {"mysql": 5, "mariadb": 10, "redis8": 10, "redis_cluster": 10, "dynamodb": 25, "mongodb": 10}
"""One key in so many: a client in Python alone, and a server more, are worth less of the suite's minutes."""

PATIENT = dict.fromkeys(("postgres", "mysql", "mariadb"), ("pool_timeout", "120")) | {"sqlite": ("timeout", "120")}
"""Two hundred want a pool's few connections, or the one lock: on a busy machine the last of them waits for long."""

pytestmark = pytest.mark.xdist_group("races")  # one at a time: they want the machine to themselves

every_shared_store = pytest.mark.parametrize(
    "store", [pytest.param(store, marks=pytest.mark.store(store)) for store in (*SHARED_STORES, *REDIS_KIN)]
)


def patient_url(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> str:
    url = store_url(request, tmp_path, store)
    return with_option(url, *PATIENT[store]) if store in PATIENT else url


def assert_one_winner_each(do: Do, grants: list[Grant], keys: int, attempt: int) -> None:
    """Everybody who was told "yours": one per key, with this attempt, and it is the one the store has."""
    assert Counter((grant.key, grant.attempt) for grant in grants) == Counter(
        {(key, attempt): 1 for key in range(keys)}
    )
    tokens = {grant.key: grant.token for grant in grants}
    for key in range(keys):
        record = record_of(do(lookup(f"k{key}")))
        assert (record.attempt, record.token) == (attempt, tokens[key])


@every_shared_store
@pytest.mark.timeout(600)
def test_one_winner_per_key_and_attempt(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """I1, I2, I3: over processes and threads; then all leases lapse, and everybody races for attempt 2."""
    assert PROCESSES * THREADS == 200
    keys = max(1, KEYS // SHARE.get(store, 1))
    url = patient_url(request, tmp_path, store)
    do = open_migrated(url, "sync")
    try:
        assert_one_winner_each(do, run_race(Race(url, keys, now=0)), keys, attempt=1)
        assert_one_winner_each(do, run_race(Race(url, keys, now=31)), keys, attempt=2)
    finally:
        do.close()


@every_shared_store
@pytest.mark.timeout(600)
def test_one_winner_among_tasks_of_a_loop(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """I1 in the async colour: 200 tasks of one event loop for each key."""
    url = patient_url(request, tmp_path, store)
    open_migrated(url, "sync").close()
    loop, opened = LoopThread(), open_async_store(url)

    async def race(key: int, now: float) -> list[int]:
        ops = [claim(f"k{key}", lease=30, on_lapse="rerun", now=now) for _ in range(200)]
        replies = await asyncio.gather(*(opened.execute(op) for op in ops))
        return [record_of(reply).attempt for reply in replies if reply.granted]

    try:
        for key in range(ASYNC_KEYS):
            assert loop.run(race(key, now=0)) == [1]
            assert loop.run(race(key, now=31)) == [2]
    finally:
        loop.run(opened.aclose())
        loop.close()
