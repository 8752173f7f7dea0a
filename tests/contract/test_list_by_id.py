from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.testing import Do
from retrysafe.testing.contract.list_by_id import *  # noqa: F403
from tests.contract.conftest import TRANSPORTS, cases_with
from tests.opening import Opener


@pytest.fixture(params=cases_with("lists_by_id"))
def do(request: pytest.FixtureRequest, opener: Opener) -> Iterator[Do]:
    """Only stores that list by id."""
    store, colour, transport = request.param
    opened = opener(store, colour)
    assert opened.capabilities.lists_by_id
    yield TRANSPORTS[transport](opened)
    opened.close()
