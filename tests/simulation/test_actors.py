"""Whole deployments with a user's database, a broker, webhooks and people in a hurry, by seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from retrysafe.testing.simulation import World, check, local_shop, queue_shop, shrink, ways_shop, webhook_shop
from retrysafe.testing.simulation.scenario import Scenario

SEEDS_PER_TEST = 5
SEEDS = int(os.environ.get("RETRYSAFE_SIMULATED_SEEDS", "100")) // 4
FIRST = int(os.environ.get("RETRYSAFE_FIRST_SEED", "0"))

SCENARIOS: dict[str, Scenario] = {
    "local steps, one database": local_shop.TOGETHER,
    "local steps, two databases": local_shop.ELSEWHERE,
    "outbox, jobs, consumers": queue_shop.SCENARIO,
    "webhooks": webhook_shop.SCENARIO,
    "further ways": ways_shop.SCENARIO,
}
scenarios = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)


@scenarios
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, SEEDS_PER_TEST))
def test_histories_break_no_rule(scenario: Scenario, first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        problems = check(World(seed, scenario).run())
        if problems:
            pytest.fail(str(shrink(seed, scenario)))


@scenarios
def test_every_kind_ends_in_answers(scenario: Scenario) -> None:
    """A kind whose clients are never told anything would break no rule, and prove nothing."""
    told: set[str] = set()
    for seed in range(40):
        outcome = World(seed, scenario).run()
        told |= {each.kind for each in outcome.purchases if outcome.replies.get(each.name)}
        if told == set(scenario.kinds):
            return
    pytest.fail(f"no client was told anything about {set(scenario.kinds) - told}")


def test_a_seed_is_one_history() -> None:
    """In this process, and in others with another order of sets."""
    program = "from tests.simulation.test_actors import digest_all; print(digest_all())"
    expected = str(digest_all())
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def digest_all() -> list[str]:
    return [digest(scenario, seed) for scenario in SCENARIOS.values() for seed in (1, 2)]


def digest(scenario: Scenario, seed: int) -> str:
    outcome = World(seed, scenario).run()
    return hashlib.sha256(repr((outcome.history.events, outcome.steps)).encode()).hexdigest()[:16]
