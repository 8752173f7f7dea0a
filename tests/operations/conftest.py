from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.opening import COLOURS
from tests.operations.world import World, make_world

PLACES = [
    pytest.param((store, colour), id=f"{store}-{colour}", marks=pytest.mark.store(store))
    for store in ("sqlite", "postgres")
    for colour in COLOURS
]


@pytest.fixture(params=PLACES)
def w(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    store, colour = request.param
    world = make_world(request, tmp_path, store, colour)
    yield world
    world.close()


@pytest.fixture(params=COLOURS)
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], World]]:
    """On SQLite, another world each time it is called."""
    made: list[World] = []

    def world() -> World:
        made.append(make_world(request, tmp_path, "sqlite", request.param))
        return made[-1]

    yield world
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between tries are there for other systems to recover; here nobody has to."""
    monkeypatch.setattr("retrysafe.operations.run.BACKOFF_SECONDS", (0.0, 0.0, 0.0))
