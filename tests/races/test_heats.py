"""I1, I2, I3 for every store there is: 64 claimers, 500 keys (100 where a claim is slow), one grant for each attempt.

A store that is entered in tests/opening.py is here. `RETRYSAFE_HEAT_KEYS` says how many keys (`make proof-stores`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.opening import REDIS_KIN, SHARED_STORES, STORES, open_migrated, store_url
from tests.races.heats import CREW, course, run

KEYS = int(os.environ.get("RETRYSAFE_HEAT_KEYS", "500"))
SHARE = {} if "RETRYSAFE_HEAT_KEYS" in os.environ else {"dynamodb": 5, "duckdb": 5, "mongodb": 2}
"""One key in so many: the slow ones are worth less of the suite's minutes. A campaign has them all."""

APART = ("sync", "async", "sync", "async")
TOGETHER = ("sync", "sync", "sync", "sync")
"""Where one process alone may use the store: on one file, but each crew with a store object of its own."""

pytestmark = pytest.mark.xdist_group("races")  # one at a time: they want the machine to themselves


def every(stores: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("store", [pytest.param(store, marks=pytest.mark.store(store)) for store in stores])


@every([*SHARED_STORES, *REDIS_KIN])
@pytest.mark.timeout(1200)
def test_sixty_four_claimers_in_processes(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    one_grant_per_attempt(store_url(request, tmp_path, store), KEYS // SHARE.get(store, 1), APART, apart=True)


@every([store for store in STORES if store not in SHARED_STORES])
@pytest.mark.timeout(1200)
def test_sixty_four_claimers_in_one_process(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    one_grant_per_attempt(store_url(request, tmp_path, store), KEYS // SHARE.get(store, 1), TOGETHER, apart=False)


def one_grant_per_attempt(url: str, keys: int, crews: tuple[str, ...], *, apart: bool) -> None:
    """Everybody races for each key; then the leases of one in ten have lapsed, and everybody races for attempt 2."""
    assert len(crews) * CREW == 64
    again = max(1, keys // 10)
    do = open_migrated(url, "sync")
    try:
        grants = run(course(url, keys, again, crews, apart))
        told = Counter((grant.key, grant.attempt) for grant in grants)
        assert told == Counter([(key, 1) for key in range(keys)] + [(key, 2) for key in range(again)])
        last = {grant.key: (grant.attempt, grant.token) for grant in sorted(grants)}
        for key in range(keys):
            assert do.record(f"k{key}").fence == last[key], "who was told it is theirs is not who the store has"
        print(f"{64 * (keys + again)} claims by 64 claimers for {keys} keys: {len(grants)} grants, one per attempt")
    finally:
        do.close()
