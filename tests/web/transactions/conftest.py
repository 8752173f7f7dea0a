"""`shop`: every framework × database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transactions.conftest import postgres_world, sqlite_world
from tests.transactions.rigs import World
from tests.web.transactions.shops import KINDS, Shop, transactions

STORES = {"sqlite": sqlite_world, "postgres": postgres_world}
PLACES = [
    pytest.param((store, name), id=f"{store}-{name}", marks=pytest.mark.store(store))
    for store in STORES
    for name in KINDS
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def world(request: pytest.FixtureRequest, place: tuple[str, str], tmp_path: Path) -> Iterator[World]:
    made = STORES[place[0]](request, tmp_path)
    yield made
    made.safe.close()


@pytest.fixture
def shop(world: World, place: tuple[str, str]) -> Iterator[Shop]:
    kind = KINDS[place[1]]
    with transactions(world, kind.driver) as tx:
        made = Shop(world, kind, tx)
        yield made
        made.close()
