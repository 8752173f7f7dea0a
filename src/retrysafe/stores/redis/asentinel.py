"""Connections to whichever server the sentinels call the primary, async: sentinel.py with awaits."""

from __future__ import annotations

from copy import copy
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import NoBackoff

from retrysafe.stores.redis import urls
from retrysafe.stores.redis.aconnection import prompt
from retrysafe.stores.redis.sentinel import sentinel_options


class ManagedConnection(SentinelManagedConnection):
    read_response = Connection.read_response  # type: ignore[assignment]  # redis-py's two differ in a hint


class ManagedSSLConnection(SentinelManagedSSLConnection):
    read_response = SSLConnection.read_response  # type: ignore[assignment]  # redis-py's two differ in a hint


class Primary:
    """What a managed connection wants to know."""

    is_master = True
    check_connection = False

    def __init__(self, service_name: str, sentinels: Sentinel) -> None:
        self.service_name = service_name
        self.sentinels = sentinels

    async def get_master_address(self) -> Any:
        """Asked on a list of this call's own: redis-py swaps its members, and callers at the same time lose some."""
        asking = copy(self.sentinels)
        asking.sentinels = list(self.sentinels.sentinels)
        address = await asking.discover_master(self.service_name)
        self.sentinels.sentinels = asking.sentinels  # who answered is asked first the next time
        return address


class SentinelPool(BlockingConnectionPool):
    """Closes its connections to the sentinels, too."""

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        await super().disconnect(*args, **kwargs)
        for sentinel in self.connection_kwargs["connection_pool"].sentinels.sentinels:
            await sentinel.connection_pool.disconnect()


def build_sentinel_pool(target: urls.Target, retry: Any) -> Any:
    options = sentinel_options(target, dict(parse_url(target.url)))
    once = {**options, "retry": Retry(NoBackoff(), 0)}
    sentinels = Sentinel(list(target.nodes), sentinel_kwargs=once)  # type: ignore[no-untyped-call]  # redis-py's
    for each in sentinels.sentinels:
        asked: Any = each.connection_pool
        asked.connection_class = prompt(asked.connection_class)
    primary = Primary(target.master, sentinels)
    kind = ManagedSSLConnection if "ssl" in options else ManagedConnection
    return urls.build_pool(SentinelPool, target.url, retry, connection_class=prompt(kind), connection_pool=primary)
