"""`Install`: the id of an installation, drawn once. That two databases have two ids: tests/stores/test_caches.py."""

from __future__ import annotations

import pytest

from retrysafe.core.ops import Install
from tests.contract.conftest import TRANSPORTS, cases_with
from tests.opening import Opener


@pytest.mark.parametrize("case", cases_with("has_install_id"))
def test_an_installation_keeps_its_id(case: tuple[str, str, str], opener: Opener) -> None:
    store, colour, transport = case
    opened = opener(store, colour)
    assert opened.capabilities.has_install_id
    do = TRANSPORTS[transport](opened)
    assert len(do(Install())) == 32
    assert do(Install()) == do(Install())
    opened.close()
