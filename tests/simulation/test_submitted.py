"""The same deployments on stores that can `submit` (stores/base.py): no rule breaks, and what is broken is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from retrysafe.testing.simulation import World, check, shrink
from retrysafe.testing.simulation.shop import KINDS, deploy
from retrysafe.testing.simulation.store import RemoteStore
from retrysafe.testing.simulation.walls import WalledStore
from tests.simulation.ablations import ABLATIONS, find_seed

SEEDS = range(1_000, 1_030)
FOUND = (
    "no lease", "an own success is not recognised", "a new token for each sending", "unclear is taken for nothing done",
    "a refusal ends an unclear claim", "a claim that was given up is not followed up", "a lease counts from the reply",
    "a claim is cancelled with its caller", "an answer is sent before it is stored", "a replay is written again",
)  # fmt: skip
"""Broken on purpose, where `submit` and `execute` part."""


@pytest.fixture(autouse=True)
def submitted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()

    def submit(self: Any, op: Any) -> asyncio.Future[Any]:
        counted[type(op).__name__] += 1
        return asyncio.ensure_future(self.execute(op))

    for kind in (RemoteStore, WalledStore):
        monkeypatch.setattr(kind, "submit", submit, raising=False)
    return counted


def test_histories_break_no_rule(submitted: Counter[str]) -> None:
    for seed in SEEDS:
        if check(World(seed, deploy, kinds=KINDS).run()):
            pytest.fail(str(shrink(seed, deploy, KINDS)))
    assert min(submitted[name] for name in ("Claim", "Complete", "Release")) > 0


@pytest.mark.parametrize("ablation", [each for each in ABLATIONS if each.name in FOUND], ids=lambda each: each.name)
def test_what_is_broken_on_purpose_is_found(ablation: Any) -> None:
    assert find_seed(ablation, 0, 300) is not None
