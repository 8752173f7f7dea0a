"""A cluster of Redis or Valkey servers as one store, async. Belongs to the event loop it is first used on.

Each node has a pipe of its own. An operation that every request makes goes straight to the pipe of its bucket's node;
whatever is turned away there takes the long way, which follows redirections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnclear
from retrysafe.stores.base import Plan, afollow
from retrysafe.stores.notify import AsyncListener, OnNotify, ShouldContinue
from retrysafe.stores.redis import notify, urls, wire
from retrysafe.stores.redis.aio import open_pool
from retrysafe.stores.redis.anode import AsyncNode
from retrysafe.stores.redis.cluster import cluster_name
from retrysafe.stores.redis.commands import READERS, ScriptCall, plan_migration, plan_operation, read_done
from retrysafe.stores.redis.packing import PACKERS
from retrysafe.stores.redis.pipe import Pipe
from retrysafe.stores.redis.routing import Cluster, RoutingPause, RoutingRequest, ScatterRequest, route_plan
from retrysafe.stores.redis.slots import Address, Topology, slot_of

R = TypeVar("R")


class AsyncRedisClusterStore:
    """Opened by a URL that names some of the nodes; the others are learnt from them."""

    capabilities = wire.CAPABILITIES

    def __init__(self, target: urls.Target) -> None:
        wire.require_driver()
        self._target = target
        self._layout = target.layout
        self._cluster = Cluster(Topology(target.nodes), target.wait, cluster_name(target))
        self._slots = [slot_of(target.layout.bucket_keys(bucket)[0]) for bucket in range(target.layout.buckets)]
        self._nodes: dict[Address, AsyncNode] = {}
        self._listener = AsyncListener(self._listen)
        self.native_batching = self._node_at(target.nodes[0]).pipe is not None
        """Calls at the same time go together by themselves: nothing is gained by holding them back."""

    @classmethod
    def open(cls, url: str) -> AsyncRedisClusterStore:
        return cls(urls.parse_url(url))

    async def execute(self, op: Op[R]) -> R:
        kind: type[Any] = type(op)
        pack = PACKERS.get(kind)
        pipe = None if pack is None else self._pipe_for(op)
        if pack is None or pipe is None:
            return await self._execute_by_plan(op)
        try:
            response = await pipe.ask(pack(op, self._layout))
        except StoreUnclear:
            self._cluster.topology.stale = True
            raise
        except StoreOutage:
            return await self._execute_by_plan(op)  # nothing was sent, and its slot may have another owner by now
        if isinstance(response, Exception):
            # Refused, so nothing was done: once more, the long way, which follows, loads scripts and explains errors.
            return await self._execute_by_plan(op)
        read: Callable[[Any, Any], R] = READERS.get(kind, read_done)
        return read(op, response)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._follow([plan_operation(op, self._layout) for op in ops])

    async def migrate(self) -> list[str]:
        applied: list[str] = (await self._follow([plan_migration(self._layout)]))[0]
        return applied

    async def announce(self, record_id: bytes) -> None:
        """To any node: they tell each other."""
        for address in self._cluster.topology.known_addresses():
            try:
                await self._node_at(address).exchange([notify.build_publish(self._layout, record_id)])
                return
            except StoreOutage:
                continue  # it is a courtesy: whoever waits looks again

    def node(self, record_id: bytes) -> str:
        return self._cluster.node(self._layout.record_keys(record_id)[-1])

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._listener.wait(record_id, seconds)

    async def aclose(self) -> None:
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            await node.aclose()
        await self._listener.aclose()
        for node in nodes:
            await node.pool.disconnect()

    def _pipe_for(self, op: Any) -> Pipe | None:
        """The pipe to the node that has this record, if that is known."""
        topology = self._cluster.topology
        address = None if topology.stale else topology.owner_of(self._slots[op.id[0] % self._layout.buckets])
        return None if address is None else self._node_at(address).pipe

    async def _execute_by_plan(self, op: Op[R]) -> R:
        reply: R = (await self._follow([plan_operation(op, self._layout)]))[0]
        return reply

    async def _follow(self, plans: list[Plan[ScriptCall, Any]]) -> list[Any]:
        return await afollow(route_plan(wire.merge_plans(plans, self._cluster.name), self._cluster), self._send)

    async def _send(self, request: RoutingRequest) -> Any:
        if isinstance(request, RoutingPause):
            return await asyncio.sleep(request.seconds)
        return await self._scatter(request)

    async def _scatter(self, request: ScatterRequest) -> dict[Address, list[Any] | StoreError]:
        answers = await asyncio.gather(
            *(self._exchange_or_error(address, commands) for address, commands in request.items())
        )
        return dict(zip(request, answers, strict=True))

    async def _exchange_or_error(self, address: Address, commands: wire.Exchange) -> list[Any] | StoreError:
        try:
            return await self._node_at(address).exchange(commands)
        except StoreError as error:
            return error

    def _node_at(self, address: Address) -> AsyncNode:
        node = self._nodes.get(address)
        if node is None:
            pool = open_pool(self._target._replace(url=self._target.url_at(address), kind="single"))
            piped = not self._target.wait.replicas
            node = self._nodes[address] = AsyncNode(pool, wire.server_name(pool), piped=piped)
        return node

    async def _listen(self, heard: OnNotify, wanted: ShouldContinue) -> None:
        from redis.asyncio import Redis

        error: Exception | None = None
        for address in self._cluster.topology.known_addresses():
            client = Redis(connection_pool=self._node_at(address).pool)
            try:
                await notify.alisten(client, self._layout, heard, wanted)
                return
            except Exception as failed:
                error = failed
        if error is not None:
            raise error
