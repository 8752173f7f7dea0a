from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.stores.registry import find_backend
from retrysafe.testing import Do
from retrysafe.testing.contract.job_backlog import *  # noqa: F403
from tests.contract.conftest import MATRIX, TRANSPORTS
from tests.opening import REDIS_KIN, Opener


def has_outbox(store: str) -> bool:
    return store not in REDIS_KIN and find_backend(f"{store}://").capabilities.outbox


WITH_OUTBOX = [case for case in MATRIX if has_outbox(case.values[0][0])]  # type: ignore[index]


@pytest.fixture(params=WITH_OUTBOX)
def do(request: pytest.FixtureRequest, opener: Opener) -> Iterator[Do]:
    """Only stores that have an outbox."""
    store, colour, transport = request.param
    opened = opener(store, colour)
    assert opened.capabilities.outbox
    yield TRANSPORTS[transport](opened)
    opened.close()
