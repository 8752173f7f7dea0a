# cluster.py is generated from this file: run `make twins` after a change.
"""The async store on a cluster of Redis or Valkey servers. Each bucket of records is on the node that owns its slot."""

from __future__ import annotations

import asyncio  # sync: import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreOutage, StoreUnclear
from retrysafe.stores.base import EXECUTE_INSTEAD, Plan, afollow
from retrysafe.stores.notify import AsyncListener, OnNotify, ShouldContinue
from retrysafe.stores.redis import notify, urls, wire
from retrysafe.stores.redis.aio import open_pool
from retrysafe.stores.redis.commands import READERS, ScriptCall, plan_migration, plan_operation, read_done
from retrysafe.stores.redis.compiled import PACKERS
from retrysafe.stores.redis.node import AsyncClusterNodes, AsyncNode
from retrysafe.stores.redis.pipe import Pipe
from retrysafe.stores.redis.routing import Cluster, RoutingPause, RoutingRequest, cluster_name, route_plan
from retrysafe.stores.redis.slots import Address, Topology, slot_of

R = TypeVar("R")


class AsyncRedisClusterStore:
    # sync: """Opened with a URL that names some of the nodes. It learns the others from them.
    # sync: Safe to use from many threads: each thread uses connections of its own from the nodes' pools."""
    """Opened with a URL that names some of the nodes. It learns the others from them.

    Belongs to the event loop on which it is first used. Each node has a pipe (pipe.py). The operations of every request
    go directly to the pipe of the node that has their bucket. If the node refuses one, a plan sends it again and
    follows redirects.
    """

    def __init__(self, target: urls.RedisLocation) -> None:
        wire.require_driver()
        self._target = target
        self._layout = target.layout
        self._cluster = Cluster(Topology(target.nodes), target.wait, cluster_name(target.nodes))
        # async only
        self._slots = [slot_of(target.layout.bucket_keys(bucket)[0]) for bucket in range(target.layout.buckets)]
        self._nodes = AsyncClusterNodes(self._open_node)
        self._listener = AsyncListener(self._listen)
        # This does not connect, but a wrong option in the URL raises here.
        # sync: self._nodes.node_at(target.nodes[0])
        first = self._nodes.node_at(target.nodes[0])
        # sync: self.capabilities = wire.CAPABILITIES
        # The pipe sends concurrent calls together, so collecting them into batches would gain nothing.
        self.capabilities = replace(wire.CAPABILITIES, native_batching=first.pipe is not None)

    @classmethod
    def open(cls, url: str) -> AsyncRedisClusterStore:
        return cls(urls.parse_url(url))

    async def execute(self, op: Op[R]) -> R:
        # async only
        kind: type[Any] = type(op)
        # async only
        if (pack := PACKERS.get(kind)) is not None and (pipe := self._pipe_for(op)) is not None:
            try:
                answer: Any = await pipe.submit(op, pack(op, self._layout), READERS.get(kind, read_done))
            except StoreUnclear:
                self._cluster.topology.stale = True
                raise
            except StoreOutage:  # nothing was sent, and the slot may have another owner by now
                answer = EXECUTE_INSTEAD
            # After an error nothing was done: the plan follows redirects, loads scripts and explains errors.
            if answer is not EXECUTE_INSTEAD:
                return answer  # type: ignore[no-any-return]  # the operation's own reply
        reply: R = (await self._follow([plan_operation(op, self._layout)]))[0]
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._follow([plan_operation(op, self._layout) for op in ops])

    async def migrate(self) -> list[str]:
        applied: list[str] = (await self._follow([plan_migration(self._layout)]))[0]
        return applied

    async def announce(self, record_id: bytes) -> None:
        """Publish to any node: the nodes of a cluster forward messages to each other."""
        for address in self._cluster.topology.known_addresses():
            try:
                await self._nodes.node_at(address).exchange([notify.build_publish(self._layout, record_id)])
                return
            except StoreOutage:
                continue  # a lost notification is harmless: a waiter polls as well

    def node(self, record_id: bytes) -> str:
        return self._cluster.node(self._layout.record_keys(record_id)[-1])

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._listener.wait(record_id, seconds)

    async def aclose(self) -> None:
        await self._listener.aclose()
        await self._nodes.aclose()

    # async only
    def _pipe_for(self, op: Any) -> Pipe | None:
        """The pipe of the node that has this record. None if the node is not known."""
        topology = self._cluster.topology
        address = None if topology.stale else topology.owner_of(self._slots[op.id[0] % self._layout.buckets])
        return None if address is None else self._nodes.node_at(address).pipe

    async def _follow(self, plans: list[Plan[ScriptCall, Any]]) -> list[Any]:
        return await afollow(route_plan(wire.merge_plans(plans, self._cluster.name), self._cluster), self._send)

    async def _send(self, request: RoutingRequest) -> Any:
        if isinstance(request, RoutingPause):
            return await asyncio.sleep(request.seconds)
        return await self._nodes.scatter(request)

    def _open_node(self, address: Address) -> AsyncNode:
        pool = open_pool(self._target._replace(url=self._target.url_at(address), kind="single"))
        # sync: return Node(pool, wire.server_name(pool))
        return AsyncNode(pool, wire.server_name(pool), piped=not self._target.wait.replicas)

    async def _listen(self, on_notify: OnNotify, should_continue: ShouldContinue) -> None:
        from redis.asyncio import Redis

        error: Exception | None = None
        for address in self._cluster.topology.known_addresses():
            client = Redis(connection_pool=self._nodes.node_at(address).pool)
            try:
                await notify.alisten(client, self._layout, on_notify, should_continue)
                return
            except Exception as failed:
                error = failed
        if error is not None:
            raise error
