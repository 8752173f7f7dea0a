"""Open a store for a test: empty, migrated, and nobody else's (tests/kept.py: emptied again and again)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pytest

from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing import Do
from tests.batching.crowd import Crowded

Colour = Literal["sync", "async"]
Opener = Callable[[str, str], Do]

STORES = ("memory", "sqlite", "redis", "postgres", "mysql", "mariadb", "duckdb", "mongodb", "dynamodb")
SHARED_STORES = ("sqlite", "redis", "postgres", "mysql", "mariadb", "mongodb", "dynamodb")
"""Those that several processes may use at once."""
REDIS_KIN = ("redis8", "redis_cluster")
"""The Redis store once more, on another server and on a cluster of three; these go through what may differ there."""
COLOURS: tuple[Colour, ...] = ("sync", "async")


def with_option(url: str, name: str, value: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{name}={value}"


PATIENCE: dict[str, dict[str, str]] = {
    "postgres": {"pool_timeout": "60", "connect_timeout": "60"},
    "mysql": {"pool_timeout": "60"},
    "mariadb": {"pool_timeout": "60"},
    "mongodb": {"patience": "60", "serverSelectionTimeoutMS": "60000", "connectTimeoutMS": "60000"},
    **{name: {"socket_timeout": "60", "socket_connect_timeout": "60"} for name in ("redis", *REDIS_KIN)},
}
"""A store gives up on a silent server after some seconds. In tests the whole machine may stand still for longer, and a
server that is late is not down: those that ask for less say so in their own URL. DynamoDB's address has it already."""


def patient(store: str, url: str) -> str:
    for name, value in PATIENCE.get(store, {}).items():
        url = with_option(url, name, value)
    return url


def unique(prefix: str = "t") -> str:
    return f"{prefix}{uuid4().hex[:12]}"


def open_do(url: str, colour: str) -> Do:
    if colour == "batched":
        return Do.asynchronous(Crowded(open_async_store(url, batching=True)))
    return Do.sync(open_store(url)) if colour == "sync" else Do.asynchronous(open_async_store(url))


def open_migrated(url: str, colour: str) -> Do:
    do = open_do(url, colour)
    do.migrate()
    return do


def store_url(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> str:
    """An address where nothing is yet."""
    if store == "memory":
        return f"memory://{uuid4().hex}"
    if store == "sqlite":
        return f"sqlite:///{tmp_path / unique()}.db"
    if store == "duckdb":
        return f"duckdb:///{tmp_path / unique()}.duckdb"
    server = patient(store, request.getfixturevalue(f"{store}_url"))
    if store == "redis" or store in REDIS_KIN:
        return with_option(server, "prefix", unique())
    return with_option(server, {"mongodb": "collection"}.get(store, "table"), unique())
