"""Every store, in both colours, against the memory store (testing/stateful.py).

`RETRYSAFE_HYPOTHESIS_PROFILE=campaign` runs long.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from retrysafe.testing.stateful import compare
from tests.opening import COLOURS, STORES, Opener

COMMON = {"deadline": None, "derandomize": False, "suppress_health_check": list(HealthCheck), "database": None}
EXAMPLES = {
    "memory": 50,
    "sqlite": 50,
    "redis": 50,
    "postgres": 50,
    "mysql": 15,
    "mariadb": 15,
    "duckdb": 6,
    "mongodb": 8,
    "dynamodb": 8,
}
STEPS = 40
CAMPAIGN = 20

MATRIX = [
    pytest.param(store, colour, id=f"{store}-{colour}", marks=pytest.mark.store(store))
    for store in STORES
    for colour in COLOURS
]


def chosen(store: str) -> settings:
    campaign = os.environ.get("RETRYSAFE_HYPOTHESIS_PROFILE") == "campaign"
    examples = EXAMPLES[store] * (CAMPAIGN if campaign else 1)
    return settings(max_examples=examples, stateful_step_count=STEPS, **COMMON)  # type: ignore[arg-type]


@pytest.mark.parametrize(("store", "colour"), MATRIX)
def test_against_memory(store: str, colour: str, opener: Opener) -> None:
    run_state_machine_as_test(compare(lambda: opener(store, colour)), settings=chosen(store))
