from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.opening import COLOURS, unique, with_option
from tests.operations.elsewhere import Elsewhere
from tests.operations.world import World, make_world

PLACES = [
    pytest.param((store, mode), id=f"{store}-{mode}", marks=pytest.mark.store(store))
    for store in ("sqlite", "postgres")
    for mode in COLOURS
]


@pytest.fixture(params=PLACES)
def w(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    store, mode = request.param
    world = make_world(request, tmp_path, store, mode)
    yield world
    world.close()


@pytest.fixture(params=COLOURS)
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Makes a new world on SQLite each time it is called."""
    made: list[World] = []

    def world() -> World:
        made.append(make_world(request, tmp_path, "sqlite", request.param))
        return made[-1]

    yield world
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries: they give other systems time to recover, which is not needed here."""
    monkeypatch.setattr("retrysafe.operations.run.BACKOFF_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture(
    params=[
        pytest.param((store, forms), id=f"{store}-{forms}", marks=pytest.mark.store(store))
        for store, forms in (("memory", "previous"), ("memory", "current"), ("redis", "previous"), ("redis", "current"))
    ]
)
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    store, forms = request.param
    if store == "memory":
        url = f"memory://{uuid4().hex}"
    else:
        url = with_option(request.getfixturevalue("redis_url"), "prefix", unique())
    made = Elsewhere(url, tmp_path, forms=forms)
    yield made
    made.close()
