"""One server per example and store, shared by all cases, and separate servers for cases that kill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.opening import unique, with_option
from tests.web.conformance.targets import TARGETS, Target

Starter = Callable[..., Target]

COMBINATIONS = [(name, store) for name, launch in TARGETS.items() for store in launch.stores]


def store_address(request: pytest.FixtureRequest, store: str, folder: Path) -> str:
    """The URL of a store with a file, prefix or table of its own."""
    if store == "sqlite":
        return f"sqlite:///{folder / 'keys.db'}"
    server: str = request.getfixturevalue(f"{store}_url")
    return with_option(server, {"redis": "prefix", "postgres": "table"}[store], unique())


def marked(name: str, store: str) -> object:
    marks = (pytest.mark.store(store), pytest.mark.xdist_group(f"web-{name}-{store}"))  # one worker starts it, once
    return pytest.param((name, store), id=f"{name}-{store}", marks=marks)


@pytest.fixture(scope="session", params=[marked(*pair) for pair in COMBINATIONS])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    name, store = request.param
    folder = tmp_path_factory.mktemp(name)
    running = Target(name, TARGETS[name], store_address(request, store, folder), folder)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starter]:
    """`start("uvicorn", "sqlite", workers=4)`: a server of the test's own."""
    running: list[Target] = []

    def starter(name: str, store: str = "sqlite", *, workers: int = 1, options: str = "", url: str = "") -> Target:
        at = url or store_address(request, store, tmp_path) + options
        one = Target(name, TARGETS[name], at, tmp_path, workers)
        running.append(one)
        return one.start()

    yield starter
    for one in running:
        one.stop()
