"""Fixtures for brokers that only some tests need: started when the first of them asks, by the one worker process that
runs them (`pytest.mark.xdist_group("rabbitmq")`, `("nats")`). tests/conftest.py imports them for everybody.

`RETRYSAFE_TEST_RABBITMQ_URL` and `RETRYSAFE_TEST_NATS_URL` name a server of your own. A server that cannot be had is
reported by its tests: skipped at home, failed in CI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.servers.base import Server, ServerUnavailable
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitMQServer


def provided(make: Callable[[], Server], variable: str) -> Iterator[str]:
    yours = os.environ.get(variable)
    if yours:
        yield yours
        return
    server = make()
    try:
        server.start()
    except ServerUnavailable as error:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(f"NOT RUN: {error}", pytrace=False)
        pytest.skip(f"NOT RUN: {error}")
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    yield from provided(RabbitMQServer, "RETRYSAFE_TEST_RABBITMQ_URL")


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    yield from provided(NatsServer, "RETRYSAFE_TEST_NATS_URL")
