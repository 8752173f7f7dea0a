"""Whole deployments under faults, by seed: nothing is charged twice, nothing is lost, everybody is told the truth."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from retrysafe.testing.simulation import World, check, shrink
from retrysafe.testing.simulation.shop import KINDS, deploy
from tests.simulation.ablations import ABLATIONS, find_seed

SEEDS_PER_TEST = 10
SEEDS = int(os.environ.get("RETRYSAFE_SIMULATED_SEEDS", "100"))
FIRST = int(os.environ.get("RETRYSAFE_FIRST_SEED", "0"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, SEEDS_PER_TEST))
def test_histories_break_no_rule(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        problems = check(World(seed, deploy, kinds=KINDS).run())
        if problems:
            pytest.fail(str(shrink(seed, deploy, KINDS)))


def test_a_seed_is_one_history() -> None:
    """In this process, again in this process, and in others with another order of sets."""
    program = "from tests.simulation.test_histories import digest; print([digest(seed) for seed in range(4)])"
    expected = str([digest(seed) for seed in range(4)])
    assert str([digest(seed) for seed in range(4)]) == expected
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def digest(seed: int) -> str:
    import hashlib

    outcome = World(seed, deploy, kinds=KINDS).run()
    return hashlib.sha256(repr((outcome.history.events, outcome.steps)).encode()).hexdigest()[:16]


def test_a_failing_history_is_made_short() -> None:
    ablation = next(each for each in ABLATIONS if each.name == "no lease")
    seed = find_seed(ablation, 0, 150)
    assert seed is not None
    with ablation.patch():
        whole = World(seed, deploy, kinds=KINDS).run()
        story = shrink(seed, deploy, KINDS, max_runs=60)
    assert len(story.outcome.faults) < len(whole.faults)
    assert "I2 no grant while a lease is live" in str(story)
