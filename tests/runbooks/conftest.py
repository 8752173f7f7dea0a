"""promtool, of Debian's prometheus."""

from __future__ import annotations

import pytest

from tests.servers.base import ServerUnavailable
from tests.servers.debian import package
from tests.servers.lazy import missing


@pytest.fixture(scope="session")
def promtool() -> list[str]:
    try:
        return package("bookworm", "prometheus").command("usr/bin/promtool")
    except ServerUnavailable as error:
        missing(str(error))
        raise
