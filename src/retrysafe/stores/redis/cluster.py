"""A cluster of Redis or Valkey servers as one store, sync: buckets of records, each on the node that has its slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreError, StoreOutage
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.notify import Listener, OnNotify, ShouldContinue
from retrysafe.stores.redis import notify, urls, wire
from retrysafe.stores.redis.commands import ScriptCall, plan_migration, plan_operation
from retrysafe.stores.redis.node import Node, SentCommands
from retrysafe.stores.redis.routing import Cluster, RoutingPause, RoutingRequest, ScatterRequest, route_plan
from retrysafe.stores.redis.slots import Address, Topology
from retrysafe.stores.redis.sync import open_pool

R = TypeVar("R")


class RedisClusterStore:
    """Opened by a URL that names some of the nodes; the others are learnt from them."""

    capabilities = wire.CAPABILITIES

    def __init__(self, target: urls.Target) -> None:
        wire.require_driver()
        self._target = target
        self._layout = target.layout
        self._cluster = Cluster(Topology(target.nodes), target.wait, cluster_name(target))
        self._nodes: dict[Address, Node] = {}
        self._lock = threading.Lock()
        self._listener = Listener(self._listen)
        self._node_at(target.nodes[0])  # it connects to nothing, but an option that is wrong is found here

    @classmethod
    def open(cls, url: str) -> RedisClusterStore:
        return cls(urls.parse_url(url))

    def execute(self, op: Op[R]) -> R:
        reply: R = self._follow([plan_operation(op, self._layout)])[0]
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._follow([plan_operation(op, self._layout) for op in ops])

    def migrate(self) -> list[str]:
        applied: list[str] = self._follow([plan_migration(self._layout)])[0]
        return applied

    def announce(self, record_id: bytes) -> None:
        """To any node: they tell each other."""
        for address in self._cluster.topology.known_addresses():
            try:
                self._node_at(address).exchange([notify.build_publish(self._layout, record_id)])
                return
            except StoreOutage:
                continue  # it is a courtesy: whoever waits looks again

    def node(self, record_id: bytes) -> str:
        return self._cluster.node(self._layout.record_keys(record_id)[-1])

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.pool.disconnect()

    def _follow(self, plans: list[Plan[ScriptCall, Any]]) -> list[Any]:
        return follow(route_plan(wire.merge_plans(plans, self._cluster.name), self._cluster), self._send)

    def _send(self, request: RoutingRequest) -> Any:
        if isinstance(request, RoutingPause):
            time.sleep(request.seconds)
            return None
        return self._scatter(request)

    def _scatter(self, request: ScatterRequest) -> dict[Address, list[Any] | StoreError]:
        """Everything goes out before the first response is waited for."""
        sent: dict[Address, SentCommands | StoreError] = {}
        for address, commands in request.items():
            try:
                sent[address] = self._node_at(address).send(commands)
            except StoreError as error:
                sent[address] = error
        answers: dict[Address, list[Any] | StoreError] = {}
        for address, under_way in sent.items():
            try:
                answers[address] = under_way.read_responses() if isinstance(under_way, SentCommands) else under_way
            except StoreError as error:
                answers[address] = error
        return answers

    def _node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.get(address)
                if node is None:
                    pool = open_pool(self._target._replace(url=self._target.url_at(address), kind="single"))
                    node = self._nodes[address] = Node(pool, wire.server_name(pool))
        return node

    def _listen(self, heard: OnNotify, wanted: ShouldContinue) -> None:
        from redis import Redis

        error: Exception | None = None
        for address in self._cluster.topology.known_addresses():
            client = Redis(connection_pool=self._node_at(address).pool)
            try:
                notify.listen(client, self._layout, heard, wanted)
                return
            except Exception as failed:
                error = failed
        if error is not None:
            raise error


def cluster_name(target: urls.Target) -> str:
    """How messages call it. Never with a password."""
    return "the Redis cluster at " + ",".join(f"{host}:{port}" for host, port in target.nodes)
