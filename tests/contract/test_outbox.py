from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe.stores.registry import find_backend
from retrysafe.testing import Do
from retrysafe.testing.contract.outbox import *  # noqa: F403
from tests.contract.conftest import TRANSPORTS
from tests.opening import COLOURS, STORES, open_migrated, store_url

MATRIX = [
    pytest.param((store, colour, transport), id=f"{store}-{colour}-{transport}", marks=pytest.mark.store(store))
    for store in STORES
    if find_backend(f"{store}://").capabilities.outbox
    for colour in COLOURS
    for transport in ("plain", "many")
    if store != "duckdb" or (colour, transport) == ("async", "plain")  # its files take their time, one way says it all
]


@pytest.fixture(params=MATRIX)
def do(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Do]:
    """Only stores that have an outbox; on tables of its own each time."""
    store, colour, transport = request.param
    opened = open_migrated(store_url(request, tmp_path, store), colour)
    assert opened.capabilities.outbox
    yield TRANSPORTS[transport](opened)
    opened.close()
