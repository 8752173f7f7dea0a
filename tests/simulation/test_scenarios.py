"""Without an ablation, the situations in which ablations are looked for break no rule: what is found there is the
ablation's doing."""

from __future__ import annotations

import os

import pytest

from tests.simulation.ablations import ABLATIONS, Situation
from tests.simulation.ablations.base import keep_plan

SEEDS = int(os.environ.get("RETRYSAFE_CONTROL_SEEDS", "4"))


def list_situations() -> dict[str, Situation]:
    """Each situation once, under the name of its first ablation."""
    found: dict[str, Situation] = {}
    for ablation in ABLATIONS:
        if ablation.situation not in found.values() and ablation.situation != Situation(plan=keep_plan):
            found[ablation.name] = ablation.situation
    return found


@pytest.mark.parametrize("name", list_situations())
def test_without_an_ablation_no_rule_is_broken(name: str) -> None:
    situation = list_situations()[name]
    for seed in range(SEEDS):
        assert situation.play(seed) == [], f"seed {seed}"


REDIRECTS = list_situations()["a claim is granted to another request"]


@pytest.mark.parametrize("seed", [1703578761, 11, 61, 181, 407, 497, 552, 668, 1589, 4347, 5660])
def test_redirected_clients_get_their_answer(seed: int) -> None:
    """Clients of a key to which nothing had happened were refused for ever; an operator was asked about a redirect.
    (1589: an intruder's endpoint ran and failed, on a store that had lost its record.)"""
    assert REDIRECTS.play(seed) == []
