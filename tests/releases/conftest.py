"""`old` and `new`: two releases as processes; `world`: a store on which they meet.

Every file here is of the group `releases`, which one worker runs: the processes are started once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.releases.places import MAIN, OUTBOX, SHARED, STORES, Place, World, place_for
from tests.releases.processes import OLD, ROOT, Release, unpacked


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    release = Release(OLD, unpacked(OLD, tmp_path_factory.mktemp("release")))
    yield release
    release.end()


@pytest.fixture(scope="session")
def new() -> Iterator[Release]:
    release = Release("new", ROOT / "src")
    yield release
    release.end()


def marked(stores: tuple[str, ...]) -> list[object]:
    return [pytest.param(store, marks=pytest.mark.store(store)) for store in stores]


@pytest.fixture(params=marked(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for(request, tmp_path, request.param)


def met(request: pytest.FixtureRequest, folder: Path) -> Iterator[World]:
    releases = (request.getfixturevalue("old"), request.getfixturevalue("new"))
    made = World(place_for(request, folder, request.param), *releases)
    yield made
    made.close()


@pytest.fixture(params=marked(MAIN))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from met(request, tmp_path)


@pytest.fixture(params=marked(SHARED))
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same on more stores."""
    yield from met(request, tmp_path)


@pytest.fixture(params=marked(tuple(store for store in SHARED if store in OUTBOX)))
def with_outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from met(request, tmp_path)


@pytest.fixture(params=["old", "new"])
def first(request: pytest.FixtureRequest) -> str:
    """Which release begins; the other one goes on."""
    return str(request.param)
