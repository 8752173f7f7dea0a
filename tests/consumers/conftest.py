"""A broker and a queue for each test; one test process for each broker, so that no broker is started twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from retrysafe.engine.safe import RetrySafe
from tests.consumers.brokers import KINDS, Broker, broker_of
from tests.opening import unique


@pytest.fixture(scope="session")
def kafka_address() -> Iterator[str]:
    """librdkafka's mock broker: the real protocol, in this process. A real Kafka is not available as a package."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del producer


URLS = {"rabbitmq": "rabbitmq_url", "nats": "nats_url", "redis": "redis_url", "kafka": "kafka_address"}
EVERY = [
    pytest.param(kind, marks=[] if kind == "redis" else [pytest.mark.xdist_group(kind)], id=kind) for kind in KINDS
]


@pytest.fixture(params=EVERY)
def broker(request: pytest.FixtureRequest) -> Broker:
    return broker_of(request.param, request.getfixturevalue(URLS[request.param]), unique("queue"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The consumer's own database, which is the store's too."""
    path = tmp_path / "consumer.db"
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE effects (id TEXT)")
    db.close()
    return path
