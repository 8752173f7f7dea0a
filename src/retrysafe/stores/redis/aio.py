# sync.py is generated from this file: run `make twins` after a change.
"""The async Redis store: one server, or the server that sentinels call the primary."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import EXECUTE_INSTEAD, Plan, afollow
from retrysafe.stores.notify import AsyncListener
from retrysafe.stores.redis import notify, replicas, urls, wire
from retrysafe.stores.redis.aconnection import with_abort_on_disconnect
from retrysafe.stores.redis.commands import READERS, ScriptCall, plan_migration, plan_operation, read_done
from retrysafe.stores.redis.compiled import PACKERS
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.node import AsyncNode
from retrysafe.stores.redis.replicas import NO_WAIT, ReplicaWait

R = TypeVar("R")


class AsyncRedisStore:
    # sync: """Made from your client, or from a URL with `open`. It closes the client only if it owns it.
    # sync: Safe to use from many threads: each thread uses a connection of its own from the pool."""
    """Made from your client, or from a URL with `open`. It closes the client only if it owns it.

    Belongs to the event loop on which it is first used. With hiredis all callers share one connection (pipe.py), and
    Redis needs no other batching. Without hiredis, and with `wait`, it uses the connections of the pool.
    """

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
        # sync: self._node = Node(self._pool, wire.server_name(self._pool))
        self._node = AsyncNode(self._pool, wire.server_name(self._pool), piped=not wait.replicas)
        self._pipe = self._node.pipe  # async only
        self.in_order = self._pipe is not None  # async only
        # sync: self.capabilities = wire.CAPABILITIES
        # The pipe sends concurrent calls together, so collecting them into batches would gain nothing.
        self.capabilities = replace(wire.CAPABILITIES, native_batching=self.in_order)
        self._listener = AsyncListener(
            lambda on_notify, should_continue: notify.alisten(client, self._layout, on_notify, should_continue)
        )

    @classmethod
    def open(cls, url: str) -> AsyncRedisStore:
        wire.require_driver()
        from redis.asyncio import Redis

        target = urls.parse_url(url)
        client = Redis(connection_pool=open_pool(target))
        layout = target.layout
        return cls(client, prefix=layout.prefix, buckets=layout.buckets, owned=True, wait=target.wait)

    async def execute(self, op: Op[R]) -> R:
        # async only
        submitted = self.submit(op)
        # async only
        if submitted is not None:
            answer: Any = await submitted
            # After an error nothing was done: the server refused it. The plan loads scripts and explains errors.
            if answer is not EXECUTE_INSTEAD:
                return answer  # type: ignore[no-any-return]  # the operation's own reply
        reply: R = (await self._follow([plan_operation(op, self._layout)]))[0]
        return reply

    # async only
    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None:
        kind = type(op)
        pack = PACKERS.get(kind)
        if self._pipe is None or pack is None:
            return None
        return self._pipe.submit(op, pack(op, self._layout), READERS.get(kind, read_done))

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._follow([plan_operation(op, self._layout) for op in ops])

    async def migrate(self) -> list[str]:
        applied: list[str] = (await self._follow([plan_migration(self._layout)]))[0]
        return applied

    async def announce(self, record_id: bytes) -> None:
        await self._node.exchange([notify.build_publish(self._layout, record_id)])

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._listener.wait(record_id, seconds)

    async def aclose(self) -> None:
        await self._node.aclose()  # async only
        await self._listener.aclose()
        if self._owned:
            await self._client.aclose()
            await self._pool.disconnect()

    async def _follow(self, plans: list[Plan[ScriptCall, Any]]) -> list[Any]:
        exchanges = wire.merge_plans(plans, self._node.name)
        if self._wait.replicas:
            exchanges = replicas.with_replica_ack(exchanges, self._wait, self._node.name)
        return await afollow(exchanges, self._node.exchange)


def open_pool(target: urls.RedisLocation) -> Any:
    """Make a pool of connections to the server, or to the server that the sentinels call the primary."""
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    # One retry: a pooled connection that a proxy has closed is not an outage.
    retry = Retry(NoBackoff(), 1)
    if target.kind == "sentinel":
        from retrysafe.stores.redis.asentinel import build_sentinel_pool

        return build_sentinel_pool(target, retry)
    # sync: return urls.build_pool(BlockingConnectionPool, target.url, retry)
    pool = urls.build_pool(BlockingConnectionPool, target.url, retry)
    pool.connection_class = with_abort_on_disconnect(pool.connection_class)  # async only
    return pool  # async only
