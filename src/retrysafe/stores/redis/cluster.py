"""A cluster of Redis or Valkey servers as one store, sync: buckets of records, each on the node that has its slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreError, StoreOutage
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.redis import urls, waking, wire
from retrysafe.stores.redis.commands import Call, migration, plan
from retrysafe.stores.redis.node import Node, Sent
from retrysafe.stores.redis.routing import Cluster, Pause, Request, Round, routed
from retrysafe.stores.redis.slots import Address, Topology
from retrysafe.stores.redis.sync import pool_of
from retrysafe.stores.waking import Heard, Listener, Wanted

R = TypeVar("R")


class RedisClusterStore:
    """Opened by a URL that names some of the nodes; the others are learnt from them."""

    capabilities = wire.CAPABILITIES

    def __init__(self, target: urls.Target) -> None:
        wire.need_driver()
        self._target = target
        self._layout = target.layout
        self._cluster = Cluster(Topology(target.nodes), target.wait, name_of(target))
        self._nodes: dict[Address, Node] = {}
        self._lock = threading.Lock()
        self._listener = Listener(self._listen)
        self._node(target.nodes[0])  # it connects to nothing, but an option that is wrong is found here

    @classmethod
    def open(cls, url: str) -> RedisClusterStore:
        return cls(urls.target(url))

    def execute(self, op: Op[R]) -> R:
        reply: R = self._follow([plan(op, self._layout)])[0]
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._follow([plan(op, self._layout) for op in ops])

    def migrate(self) -> list[str]:
        applied: list[str] = self._follow([migration(self._layout)])[0]
        return applied

    def announce(self, record_id: bytes) -> None:
        """To any node: they tell each other."""
        for address in self._cluster.topology.known():
            try:
                self._node(address).exchange([waking.announcement(self._layout, record_id)])
                return
            except StoreOutage:
                continue  # it is a courtesy: whoever waits looks again

    def node(self, record_id: bytes) -> str:
        return self._cluster.node(self._layout.of(record_id)[-1])

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.pool.disconnect()

    def _follow(self, plans: list[Plan[Call, Any]]) -> list[Any]:
        return follow(routed(wire.together(plans, self._cluster.name), self._cluster), self._send)

    def _send(self, request: Request) -> Any:
        if isinstance(request, Pause):
            time.sleep(request.seconds)
            return None
        return self._round(request)

    def _round(self, request: Round) -> dict[Address, list[Any] | StoreError]:
        """Everything goes out before the first response is waited for."""
        sent: dict[Address, Sent | StoreError] = {}
        for address, commands in request.items():
            try:
                sent[address] = self._node(address).send(commands)
            except StoreError as error:
                sent[address] = error
        answers: dict[Address, list[Any] | StoreError] = {}
        for address, under_way in sent.items():
            try:
                answers[address] = under_way.responses() if isinstance(under_way, Sent) else under_way
            except StoreError as error:
                answers[address] = error
        return answers

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.get(address)
                if node is None:
                    pool = pool_of(self._target._replace(url=self._target.at(address), kind="single"))
                    node = self._nodes[address] = Node(pool, wire.server_name(pool))
        return node

    def _listen(self, heard: Heard, wanted: Wanted) -> None:
        from redis import Redis

        error: Exception | None = None
        for address in self._cluster.topology.known():
            client = Redis(connection_pool=self._node(address).pool)
            try:
                waking.listen(client, self._layout, heard, wanted)
                return
            except Exception as failed:
                error = failed
        if error is not None:
            raise error


def name_of(target: urls.Target) -> str:
    """How messages call it. Never with a password."""
    return "the Redis cluster at " + ",".join(f"{host}:{port}" for host, port in target.nodes)
