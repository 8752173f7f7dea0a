"""Connections to whichever server the sentinels call the primary, sync: redis-py's, in a pool that is bounded.

Each connection asks the sentinels anew. redis-py's own pool for this has no bound that callers wait at, and its
connection turns a replica's refusal into a broken connection, which would make a clear "no" unclear.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from redis import BlockingConnectionPool, Connection, SSLConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

from retrysafe.stores.redis import urls


class ManagedConnection(SentinelManagedConnection):
    read_response = Connection.read_response


class ManagedSSLConnection(SentinelManagedSSLConnection):
    read_response = SSLConnection.read_response


class Primary:
    """What a managed connection wants to know."""

    is_master = True
    check_connection = False

    def __init__(self, service_name: str, sentinels: Sentinel) -> None:
        self.service_name = service_name
        self.sentinels = sentinels

    def get_master_address(self) -> Any:
        """Asked on a list of this call's own: redis-py swaps its members, and callers at the same time lose some."""
        asking = copy(self.sentinels)
        asking.sentinels = list(self.sentinels.sentinels)
        address = asking.discover_master(self.service_name)  # type: ignore[no-untyped-call]  # redis-py's
        self.sentinels.sentinels = asking.sentinels  # who answered is asked first the next time
        return address


class SentinelPool(BlockingConnectionPool):
    """Closes its connections to the sentinels, too."""

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        super().disconnect(*args, **kwargs)
        for sentinel in self.connection_kwargs["connection_pool"].sentinels.sentinels:
            sentinel.connection_pool.disconnect()


def build_sentinel_pool(target: urls.Target, retry: Any) -> Any:
    options = sentinel_options(target, parse_url(target.url))  # type: ignore[no-untyped-call]  # redis-py's
    once = {**options, "retry": Retry(NoBackoff(), 0)}
    sentinels = Sentinel(list(target.nodes), sentinel_kwargs=once)  # type: ignore[no-untyped-call]  # redis-py's
    primary = Primary(target.master, sentinels)
    kind = ManagedSSLConnection if "ssl" in options else ManagedConnection
    return urls.build_pool(SentinelPool, target.url, retry, connection_class=kind, connection_pool=primary)


def sentinel_options(target: urls.Target, given: dict[str, Any]) -> dict[str, Any]:
    """How to connect to a sentinel: as to a server, but with a name and a password of its own."""
    own = {"socket_timeout": urls.SOCKET_TIMEOUT_SECONDS, "socket_connect_timeout": urls.SOCKET_TIMEOUT_SECONDS}
    same = {name: value for name, value in given.items() if name.startswith(("ssl", "socket"))}
    tls = {"ssl": True} if target.url.startswith("rediss:") else {}
    return {**own, **same, **tls, **dict(target.sentinel)}
