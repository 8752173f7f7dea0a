# sentinel.py is generated from this file: run `make twins` after a change.
"""A bounded async pool of connections to the server that the sentinels call the primary. Based on redis-py's classes.

Each new connection asks the sentinels for the primary. redis-py's own sentinel pool has no limit at which callers wait.
Its connection turns a replica's refusal into a broken connection, so an operation that was clearly refused would look
unclear.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import NoBackoff

from retrysafe.stores.redis import urls
from retrysafe.stores.redis.aconnection import with_abort_on_disconnect


class ManagedConnection(SentinelManagedConnection):
    # sync: read_response = Connection.read_response
    read_response = Connection.read_response  # type: ignore[assignment]  # redis-py's two differ in a hint


class ManagedSSLConnection(SentinelManagedSSLConnection):
    # sync: read_response = SSLConnection.read_response
    read_response = SSLConnection.read_response  # type: ignore[assignment]  # redis-py's two differ in a hint


class Primary:
    """The part of redis-py's SentinelConnectionPool that a managed connection uses."""

    is_master = True
    check_connection = False

    def __init__(self, service_name: str, sentinels: Sentinel) -> None:
        self.service_name = service_name
        self.sentinels = sentinels

    async def get_master_address(self) -> Any:
        """Ask the sentinels for the primary, on a copy of their list. redis-py swaps the members of the list while it
        asks, so concurrent callers on one list would lose some of them."""
        own = copy(self.sentinels)
        own.sentinels = list(self.sentinels.sentinels)
        # sync: address = own.discover_master(self.service_name)  # type: ignore[no-untyped-call]  # redis-py's
        address = await own.discover_master(self.service_name)
        self.sentinels.sentinels = own.sentinels  # the sentinel that answered comes first the next time
        return address


class SentinelPool(BlockingConnectionPool):
    """The pool of connections to the primary. `disconnect` closes the connections to the sentinels too."""

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        await super().disconnect(*args, **kwargs)
        for sentinel in self.connection_kwargs["connection_pool"].sentinels.sentinels:
            await sentinel.connection_pool.disconnect()


def build_sentinel_pool(target: urls.RedisLocation, retry: Any) -> Any:
    # sync: options = urls.sentinel_options(target, parse_url(target.url))  # type: ignore[no-untyped-call]  # redis-py's
    options = urls.sentinel_options(target, dict(parse_url(target.url)))
    no_retry = {**options, "retry": Retry(NoBackoff(), 0)}
    sentinels = Sentinel(list(target.nodes), sentinel_kwargs=no_retry)  # type: ignore[no-untyped-call]  # redis-py's
    # async only
    for each in sentinels.sentinels:
        pool: Any = each.connection_pool
        pool.connection_class = with_abort_on_disconnect(pool.connection_class)
    primary = Primary(target.master, sentinels)
    connection_class: Any = ManagedSSLConnection if "ssl" in options else ManagedConnection
    connection_class = with_abort_on_disconnect(connection_class)  # async only
    return urls.build_pool(SentinelPool, target.url, retry, connection_class=connection_class, connection_pool=primary)
