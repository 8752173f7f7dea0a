"""The Redis and Valkey store. Each operation is one Lua script: it is atomic on the server and uses the server's clock.

A URL names one server, a cluster, or servers that sentinels watch (urls.py).

The server's settings decide how durable a record is. `retrysafe doctor` reads them and says what they guarantee.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store
from retrysafe.stores.redis import layout, urls, wire
from retrysafe.stores.redis.acluster import AsyncRedisClusterStore
from retrysafe.stores.redis.aio import AsyncRedisStore
from retrysafe.stores.redis.cluster import RedisClusterStore
from retrysafe.stores.redis.sync import RedisStore

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis

__all__ = ["AsyncRedisClusterStore", "AsyncRedisStore", "RedisClusterStore", "RedisStore", "backend"]


class RedisBackend:
    """Opens Redis stores by URL."""

    capabilities = wire.CAPABILITIES

    def open(self, url: str) -> Store:
        if urls.parse_url(url).kind == "cluster":
            return RedisClusterStore.open(url)
        return RedisStore.open(url)

    def open_async(self, url: str) -> AsyncStore:
        if urls.parse_url(url).kind == "cluster":
            return AsyncRedisClusterStore.open(url)
        return AsyncRedisStore.open(url)

    def schema(self, url: str) -> str:
        """The keys that the store will use, as a table. Redis has no schema to create."""
        prefix = urls.parse_url(url).layout.prefix
        table = (layout.__doc__ or "").split("\n\n")[1]
        return table.replace("<prefix>", prefix)

    def diagnose(self, url: str) -> Diagnosis:
        from retrysafe.stores.redis import doctor  # lazy: only this method needs it

        return doctor.diagnose(urls.parse_url(url))


backend = RedisBackend()
