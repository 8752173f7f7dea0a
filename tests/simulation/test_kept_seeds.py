"""Seeds that ever failed are kept, and played for ever. What a seed means changes with what is drawn from it; each defect
that it found has a test of its own, which does not."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

import pytest

from retrysafe.testing.simulation import World, check
from retrysafe.testing.simulation.scenario import build_scenario


class KeptSeed(NamedTuple):
    scenario: str
    kinds: str
    seed: str
    why: str


def read_kept_seeds() -> list[KeptSeed]:
    lines = (Path(__file__).parent / "kept_seeds.tsv").read_text().splitlines()
    return [KeptSeed(*line.split("\t")) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("kept", read_kept_seeds(), ids=lambda kept: f"{kept.scenario.partition(':')[2]}-{kept.seed}")
def test_a_kept_seed_breaks_no_rule(kept: KeptSeed) -> None:
    module, _, name = kept.scenario.partition(":")
    kinds = tuple(kept.kinds.split(",")) if kept.kinds else None
    scenario = build_scenario(getattr(importlib.import_module(module), name), kinds)
    assert check(World(int(kept.seed), scenario).run()) == [], kept.why
