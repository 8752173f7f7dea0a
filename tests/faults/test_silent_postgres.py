"""A PostgreSQL that is connected and says nothing: the caller is told in time, and learns the truth later (I28)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from retrysafe.core.ops import Claim
from retrysafe.errors import StoreUnclear
from retrysafe.stores.postgres import deadline
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing.builders import claim, lookup
from tests.servers import PostgresServer

pytestmark = [pytest.mark.store("postgres"), pytest.mark.timeout(60)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    monkeypatch.setattr(deadline, "SECONDS", 0.5)
    running = PostgresServer()
    running.start()
    yield running
    running.stop()


def op(key: str) -> Claim:
    return claim(key, lease=60, now=None)


def test_a_silent_server_does_not_hold_a_thread(server: PostgresServer) -> None:
    store = open_store(server.url + "?pool=1&pool_timeout=2")
    try:
        store.migrate()
        asked = op("k")
        server.pause()
        with pytest.raises(StoreUnclear):
            store.execute(asked)
        server.unpause()
        assert store.execute(asked).granted, "the same claim, sent again, learns the truth"
        assert not store.execute(op("k")).granted
    finally:
        store.close()


def test_a_silent_server_does_not_hold_a_task(server: PostgresServer) -> None:
    async def story() -> None:
        store = open_async_store(server.url + "?pool=1&pool_timeout=2")
        await store.migrate()
        asked = op("k")
        server.pause()
        with pytest.raises(StoreUnclear):
            await store.execute(asked)
        server.unpause()
        assert (await store.execute(asked)).granted
        assert (await store.execute(lookup("k", now=None))).record is not None
        await store.aclose()

    asyncio.run(story())
