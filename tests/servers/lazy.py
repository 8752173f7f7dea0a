"""Servers that only some tests need: started when the first of them asks, by the one worker process that runs them.

Such tests carry `pytest.mark.xdist_group("<server>")`, so that no other worker starts another. What was started is
written on the report of each test that used it, for the closing line; what cannot be had is skipped at home and fails
in CI, as everywhere.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

from tests.servers.base import Server, ServerUnavailable

S = TypeVar("S", bound=Server)

LABEL = "server label"
"""The property on a report: `store=label`."""


def started(server: S) -> S:
    try:
        server.start()
    except ServerUnavailable as error:
        missing(str(error))
    return server


def missing(why: str) -> None:
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"NOT RUN: {why}", pytrace=False)
    pytest.skip(f"NOT RUN: {why}")


def note(request: pytest.FixtureRequest, store: str, label: str) -> None:
    """Say on this test's report which server it ran on."""
    request.node.user_properties.append((LABEL, f"{store}={label}"))
