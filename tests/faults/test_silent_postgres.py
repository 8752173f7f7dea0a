"""A PostgreSQL that is connected and says nothing: the caller is told in time, and learns the truth later (I28)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from retrysafe.core.ops import Claim
from retrysafe.errors import StoreUnclear
from retrysafe.stores.postgres import deadline
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing.builders import claim, lookup
from tests.servers import PostgresServer

pytestmark = [pytest.mark.store("postgres"), pytest.mark.timeout(600)]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    running = PostgresServer()
    running.start()
    yield running
    running.stop()


@contextmanager
def silence(server: PostgresServer) -> Iterator[None]:
    """Stopped, and given up on after a moment. Before and after it has the time it needs, on a slow machine too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(deadline, "STATEMENT_TIMEOUT_SECONDS", 0.5)
        server.pause()
        try:
            yield
        finally:
            server.unpause()


def op(key: str) -> Claim:
    return claim(key, lease=600, now=None)


def test_a_silent_server_does_not_hold_a_thread(server: PostgresServer) -> None:
    store = open_store(server.url + "?pool=1&pool_timeout=60&connect_timeout=60")
    try:
        store.migrate()
        asked = op("k")
        with silence(server), pytest.raises(StoreUnclear):
            store.execute(asked)
        assert store.execute(asked).granted, "the same claim, sent again, learns the truth"
        assert not store.execute(op("k")).granted
    finally:
        store.close()


def test_a_silent_server_does_not_hold_a_task(server: PostgresServer) -> None:
    async def story() -> None:
        store = open_async_store(server.url + "?pool=1&pool_timeout=60&connect_timeout=60")
        await store.migrate()
        asked = op("k")
        with silence(server), pytest.raises(StoreUnclear):
            await store.execute(asked)
        assert (await store.execute(asked)).granted
        assert (await store.execute(lookup("k", now=None))).record is not None
        await store.aclose()

    asyncio.run(story())
