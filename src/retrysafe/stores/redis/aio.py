"""The Redis store, async. Belongs to the event loop it is first used on.

With hiredis it speaks on one connection without waiting for its turn (pipe.py), which is all the batching Redis needs.
Without it, and where replicas are waited for, it is sync.py with awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan, afollow
from retrysafe.stores.notify import AsyncListener
from retrysafe.stores.redis import notify, replicas, urls, wire
from retrysafe.stores.redis.aconnection import prompt
from retrysafe.stores.redis.anode import AsyncNode
from retrysafe.stores.redis.commands import READERS, ScriptCall, plan_migration, plan_operation, read_done
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.packing import PACKERS
from retrysafe.stores.redis.replicas import NO_WAIT, ReplicaWait

R = TypeVar("R")


class AsyncRedisStore:
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
        self._node = AsyncNode(self._pool, wire.server_name(self._pool), piped=not wait.replicas)
        self._pipe = self._node.pipe
        self.native_batching = self.in_order = self._pipe is not None
        """Calls at the same time go together by themselves: nothing is gained by holding them back."""
        self._listener = AsyncListener(lambda heard, wanted: notify.alisten(client, self._layout, heard, wanted))

    @classmethod
    def open(cls, url: str) -> AsyncRedisStore:
        wire.require_driver()
        from redis.asyncio import Redis

        target = urls.parse_url(url)
        client = Redis(connection_pool=open_pool(target))
        layout = target.layout
        return cls(client, prefix=layout.prefix, buckets=layout.buckets, owned=True, wait=target.wait)

    async def execute(self, op: Op[R]) -> R:
        kind: type[Any] = type(op)
        pack = PACKERS.get(kind)
        if pack is None or self._pipe is None:
            return await self._execute_by_plan(op)
        response = await self._pipe.ask(pack(op, self._layout))
        if isinstance(response, Exception):
            # Refused, so nothing was done: once more, the long way, which loads scripts and explains errors.
            return await self._execute_by_plan(op)
        read: Callable[[Any, Any], R] = READERS.get(kind, read_done)
        return read(op, response)

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
        await self._node.aclose()
        await self._listener.aclose()
        if self._owned:
            await self._client.aclose()
            await self._pool.disconnect()

    async def _execute_by_plan(self, op: Op[R]) -> R:
        reply: R = (await self._follow([plan_operation(op, self._layout)]))[0]
        return reply

    async def _follow(self, plans: list[Plan[ScriptCall, Any]]) -> list[Any]:
        exchanges = wire.merge_plans(plans, self._node.name)
        if self._wait.replicas:
            exchanges = replicas.with_replica_ack(exchanges, self._wait, self._node.name)
        return await afollow(exchanges, self._node.exchange)


def open_pool(target: urls.Target) -> Any:
    """Connections to the server, or to the one that the sentinels name."""
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    # One more try to connect: a pooled connection that a proxy closed is not an outage.
    retry = Retry(NoBackoff(), 1)
    if target.kind == "sentinel":
        from retrysafe.stores.redis.asentinel import build_sentinel_pool

        return build_sentinel_pool(target, retry)
    made = urls.build_pool(BlockingConnectionPool, target.url, retry)
    made.connection_class = prompt(made.connection_class)
    return made
