"""Those who decide at once: an owner that comes back, the sweeper, and two people who do not agree. One wins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Complete, Lookup, Op, Resolve, Suspect
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.errors import StoreOutage
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, record_of
from tests.opening import store_url

OWNER, FIRST = Answer(201, b"the owner"), Answer(200, b"the first person")
STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "redis")]
ROUNDS = [pytest.param(25, id="few"), pytest.param(1000, id="many", marks=pytest.mark.campaign)]
PATIENCE = 60.0


def parties(record: Record) -> dict[str, Op[bool]]:
    return {
        "owner": Complete(record.id, record.fence, OWNER),
        "happened": Resolve(record.id, record.fence, FIRST, "a person"),
        "did not": Resolve(record.id, record.fence, None, "another person"),
        "sweeper": Suspect(record.id, record.fence, "swept", lapsed_only=True),
    }


def insist(store: Store, op: Op[bool]) -> bool:
    """As the engine does: what is unclear is sent again."""
    for _ in range(50):
        try:
            return store.execute(op)
        except StoreOutage:
            continue
    raise AssertionError(f"{op} was never answered")


def race(store: Store, ops: dict[str, Op[bool]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    start = threading.Barrier(len(ops))

    def run(name: str) -> None:
        start.wait(PATIENCE)
        told[name] = insist(store, ops[name])

    threads = [threading.Thread(target=run, args=(name,)) for name in ops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert told.keys() == ops.keys()
    return told


EXPECTED: dict[str, Callable[[Record], bool]] = {
    "owner": lambda record: record.answer == OWNER,
    "happened": lambda record: record.answer == FIRST and record.note == "a person",
    "did not": lambda record: record.state is State.RELEASED and record.note == "another person",
}


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", STORES)
def test_one_wins_and_the_others_are_told(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, rounds: int
) -> None:
    store = open_store(store_url(request, tmp_path, name))
    store.migrate()
    try:
        for number in range(rounds):
            held = record_of(store.execute(claim(f"k{number}", lease=0, now=None)))
            told = race(store, parties(held))
            winners = [who for who in EXPECTED if told[who]]
            assert len(winners) == 1, f"round {number}: {told}"
            after = store.execute(Lookup(held.id)).record
            assert after is not None
            assert EXPECTED[winners[0]](after), f"round {number}: {winners} won, and it is {after}"
    finally:
        store.close()
