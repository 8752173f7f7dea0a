from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe.testing import Do
from retrysafe.testing.contract.outbox import *  # noqa: F403
from tests.contract.conftest import TRANSPORTS
from tests.opening import COLOURS, open_migrated, store_url

MATRIX = [
    pytest.param((store, colour, transport), id=f"{store}-{colour}-{transport}", marks=pytest.mark.store(store))
    for store in ("memory", "sqlite", "postgres")
    for colour in COLOURS
    for transport in ("plain", "many")
]


@pytest.fixture(params=MATRIX)
def do(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Do]:
    """Only stores that have an outbox; on tables of its own each time."""
    store, colour, transport = request.param
    opened = open_migrated(store_url(request, tmp_path, store), colour)
    assert opened.capabilities.outbox
    yield TRANSPORTS[transport](opened)
    opened.close()
