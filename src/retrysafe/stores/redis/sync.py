"""The Redis store, sync. Safe to use from many threads: each speaks on its own connection of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.redis import replicas, urls, waking, wire
from retrysafe.stores.redis.commands import Call, migration, plan
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.node import Node
from retrysafe.stores.redis.replicas import NOBODY, Wait
from retrysafe.stores.waking import Listener

R = TypeVar("R")


class RedisStore:
    """From your client, or with `open` from a URL. Closes the client only if it owns it."""

    capabilities = wire.CAPABILITIES

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = DEFAULT_PREFIX,
        buckets: int = 1,
        owned: bool = False,
        wait: Wait = NOBODY,
    ) -> None:
        self._client = client
        self._layout = Layout(prefix, buckets)
        self._owned = owned
        self._wait = wait
        self._pool = wire.checked_pool(client)
        self._node = Node(self._pool, wire.server_name(self._pool))
        self._listener = Listener(lambda heard, wanted: waking.listen(client, self._layout, heard, wanted))

    @classmethod
    def open(cls, url: str) -> RedisStore:
        wire.need_driver()
        from redis import Redis

        target = urls.target(url)
        client = Redis(connection_pool=pool_of(target))
        layout = target.layout
        return cls(client, prefix=layout.prefix, buckets=layout.buckets, owned=True, wait=target.wait)

    def execute(self, op: Op[R]) -> R:
        reply: R = self._follow([plan(op, self._layout)])[0]
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._follow([plan(op, self._layout) for op in ops])

    def migrate(self) -> list[str]:
        applied: list[str] = self._follow([migration(self._layout)])[0]
        return applied

    def announce(self, record_id: bytes) -> None:
        self._node.exchange([waking.announcement(self._layout, record_id)])

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        if self._owned:
            self._client.close()
            self._pool.disconnect()

    def _follow(self, plans: list[Plan[Call, Any]]) -> list[Any]:
        exchanges = wire.together(plans, self._node.name)
        if self._wait.replicas:
            exchanges = replicas.assured(exchanges, self._wait, self._node.name)
        return follow(exchanges, self._node.exchange)


def pool_of(target: urls.Target) -> Any:
    """Connections to the server, or to the one that the sentinels name."""
    from redis import BlockingConnectionPool
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # One more try to connect: a pooled connection that a proxy closed is not an outage.
    retry = Retry(NoBackoff(), 1)
    if target.kind == "sentinel":
        from retrysafe.stores.redis.sentinel import pool

        return pool(target, retry)
    return urls.pool(BlockingConnectionPool, target.url, retry)
