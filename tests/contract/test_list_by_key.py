from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.testing import Do
from retrysafe.testing.contract.list_by_key import *  # noqa: F403
from tests.contract.conftest import TRANSPORTS, cases_with
from tests.opening import Opener


@pytest.fixture(params=cases_with("finds_keys"))
def do(request: pytest.FixtureRequest, opener: Opener) -> Iterator[Do]:
    """Only stores that find a key without its scope."""
    store, colour, transport = request.param
    opened = opener(store, colour)
    assert opened.capabilities.finds_keys
    yield TRANSPORTS[transport](opened)
    opened.close()
