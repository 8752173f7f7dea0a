"""A store that was closed before it was ever used opens no connection after that: nobody would close it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.registry import find_backend
from retrysafe.testing.builders import claim
from tests.servers.ports import free_port

WAYS = [
    "postgresql://u:p@127.0.0.1:{port}/db?pool_timeout=1",
    "mysql://u:p@127.0.0.1:{port}/db?pool_timeout=1",
    "mongodb://127.0.0.1:{port}/db?serverSelectionTimeoutMS=1000",
    "redis://127.0.0.1:{port}/0",
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.partition(":")[0])
async def test_a_store_closed_before_its_first_use_says_so(way: str) -> None:
    url = way.format(port=free_port())
    store = find_backend(url).open_async(url)
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="was closed"):
        await store.execute(claim())


async def test_a_store_closed_while_it_opens_its_pool_leaves_none_open() -> None:
    """The caller is about to open the pool; whoever closes finds nothing to close."""
    url = WAYS[0].format(port=free_port())
    store: Any = find_backend(url).open_async(url)
    async with store._opening:
        asked = asyncio.ensure_future(store.execute(claim()))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.aclose())
        await asyncio.sleep(0)
    await closing
    with pytest.raises(StoreUnavailable, match="was closed"):
        await asked
    assert store._pool.closed
