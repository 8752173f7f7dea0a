"""The Redis store, sync. Safe to use from many threads: each speaks on its own connection of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.notify import Listener
from retrysafe.stores.redis import notify, replicas, urls, wire
from retrysafe.stores.redis.commands import ScriptCall, plan_migration, plan_operation
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.node import Node
from retrysafe.stores.redis.replicas import NO_WAIT, ReplicaWait

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
        wait: ReplicaWait = NO_WAIT,
    ) -> None:
        self._client = client
        self._layout = Layout(prefix, buckets)
        self._owned = owned
        self._wait = wait
        self._pool = wire.check_pool(client)
        self._node = Node(self._pool, wire.server_name(self._pool))
        self._listener = Listener(lambda heard, wanted: notify.listen(client, self._layout, heard, wanted))

    @classmethod
    def open(cls, url: str) -> RedisStore:
        wire.require_driver()
        from redis import Redis

        target = urls.parse_url(url)
        client = Redis(connection_pool=open_pool(target))
        layout = target.layout
        return cls(client, prefix=layout.prefix, buckets=layout.buckets, owned=True, wait=target.wait)

    def execute(self, op: Op[R]) -> R:
        reply: R = self._follow([plan_operation(op, self._layout)])[0]
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._follow([plan_operation(op, self._layout) for op in ops])

    def migrate(self) -> list[str]:
        applied: list[str] = self._follow([plan_migration(self._layout)])[0]
        return applied

    def announce(self, record_id: bytes) -> None:
        self._node.exchange([notify.build_publish(self._layout, record_id)])

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        if self._owned:
            self._client.close()
            self._pool.disconnect()

    def _follow(self, plans: list[Plan[ScriptCall, Any]]) -> list[Any]:
        exchanges = wire.merge_plans(plans, self._node.name)
        if self._wait.replicas:
            exchanges = replicas.with_replica_ack(exchanges, self._wait, self._node.name)
        return follow(exchanges, self._node.exchange)


def open_pool(target: urls.Target) -> Any:
    """Connections to the server, or to the one that the sentinels name."""
    from redis import BlockingConnectionPool
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # One more try to connect: a pooled connection that a proxy closed is not an outage.
    retry = Retry(NoBackoff(), 1)
    if target.kind == "sentinel":
        from retrysafe.stores.redis.sentinel import build_sentinel_pool

        return build_sentinel_pool(target, retry)
    return urls.build_pool(BlockingConnectionPool, target.url, retry)
