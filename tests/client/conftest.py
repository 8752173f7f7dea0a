from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.ambient import Virtual
from tests.client.scripted import Script, serving


@pytest.fixture
def server() -> Iterator[Script]:
    with serving() as script:
        yield script


@pytest.fixture
def virtual() -> Virtual:
    return Virtual()
