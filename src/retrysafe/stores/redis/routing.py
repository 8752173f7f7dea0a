"""Cluster routing for sync and async stores: send each command to the node that owns its slot, and follow redirects.

A command that is refused with MOVED, ASK, TRYAGAIN or CLUSTERDOWN was not executed, so it is sent again, to the node
that owns the slot by then. Responses that already came are kept: one exchange never sends an executed command again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from retrysafe.errors import StoreError, StoreUnavailable, StoreUnreachable, StoreURLError
from retrysafe.stores.base import Plan
from retrysafe.stores.redis import replicas
from retrysafe.stores.redis.failures import refusal_error
from retrysafe.stores.redis.replicas import ReplicaWait
from retrysafe.stores.redis.slots import Address, Topology, is_cluster_down, is_slot_moving, read_redirect, slot_of
from retrysafe.stores.redis.wire import Command, Exchange

R = TypeVar("R")

MAX_REDIRECTS = 16
"""How many redirects one exchange follows. More of them are taken for a loop."""

PAUSE_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, *[0.1] * 50)
"""Pauses between attempts while a slot is being moved key by key. They add up to five seconds."""

MAX_DOWN_TRIES = 5
"""How often to retry after CLUSTERDOWN. Few times: an election takes longer than a caller should wait."""


class ScatterRequest(dict[Address, Exchange]):
    """Commands for several nodes at the same time. The answer for each node is a list of responses, or an error."""


class RoutingPause(NamedTuple):
    """A request to wait this long. It has no answer."""

    seconds: float


RoutingRequest = ScatterRequest | RoutingPause


class Cluster(NamedTuple):
    """The state that routing needs: which node owns which slot, replicas to wait for, and a name for messages."""

    topology: Topology
    wait: ReplicaWait
    name: str

    def node(self, key: bytes) -> str:
        """The name of the node that owns this key, as far as is known. Empty if it is not known."""
        address = self.topology.owner_of(slot_of(key))
        return "" if address is None else node_name(address)


def route_plan(plan: Plan[Exchange, R], cluster: Cluster) -> Plan[RoutingRequest, R]:
    """Turn a plan for one server into a plan for the cluster."""
    try:
        commands = next(plan)
        while True:
            commands = plan.send((yield from _exchange(commands, cluster)))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a plan's value is an R


def learn_topology(cluster: Cluster) -> Plan[RoutingRequest, None]:
    """Ask the nodes one after the other for CLUSTER SLOTS, until one answers."""
    error: Exception | None = None
    for address in cluster.topology.known_addresses():
        answer = (yield ScatterRequest({address: [(b"CLUSTER", b"SLOTS")]}))[address]
        reply = answer if isinstance(answer, Exception) else answer[0]
        if not isinstance(reply, Exception):
            cluster.topology.learn(reply, address)
            return
        error = reply if isinstance(reply, StoreError) else _slots_refused_error(reply, node_name(address))
    raise StoreUnreachable(f"no node of {cluster.name} returned its slots, the last error: {error}") from error


def _slots_refused_error(error: Exception, server: str) -> Exception:
    if "cluster support disabled" in str(error):
        return StoreURLError(f"{server} is no cluster ({error}): give its URL as redis://host:port")
    return refusal_error(error, server)


class _PendingExchange:
    """The state of one exchange: which commands still have no final response, and where they go next."""

    def __init__(self, commands: Exchange) -> None:
        self.commands = commands
        self.replies: list[Any] = [None] * len(commands)
        self.loads = [command for command in commands if command[0] == b"SCRIPT"]
        self.open = [position for position, command in enumerate(commands) if command[0] != b"SCRIPT"]
        self.asking: dict[int, Address] = {}
        self.redirects = 0
        self.downs = 0
        self.pauses: Iterator[float] = iter(PAUSE_SECONDS)

    def group_by_node(self, topology: Topology) -> dict[Address, list[int]]:
        """The open commands, grouped by node. A command whose slot has no known owner goes to any known node."""
        shares: dict[Address, list[int]] = {}
        any_node = topology.known_addresses()[0]
        for position in self.open:
            address = self.asking.get(position) or topology.owner_of(slot_of(self.commands[position][3])) or any_node
            shares.setdefault(address, []).append(position)
        return shares

    def commands_for(self, positions: list[int]) -> Iterator[tuple[Command, int | None]]:
        """The commands for one node, each with its index in the exchange or None. Scripts are loaded first, because the
        node may not know them yet."""
        for load in self.loads:
            yield load, None
        for position in positions:
            if position in self.asking:
                yield (b"ASKING",), None
            yield self.commands[position], position


def _exchange(commands: Exchange, cluster: Cluster) -> Plan[RoutingRequest, list[Any]]:
    sending = _PendingExchange(commands)
    topology = cluster.topology
    while sending.open:
        if topology.stale:
            yield from learn_topology(cluster)
        shares = sending.group_by_node(topology)
        sent = {address: list(sending.commands_for(positions)) for address, positions in shares.items()}
        answers = yield ScatterRequest(
            {address: _with_replica_ack([each for each, _ in sent[address]], cluster) for address in sent}
        )
        doubts: list[tuple[Address, list[Any]]] = []
        failed: list[tuple[Address, StoreError]] = []
        pause, sending.open, sending.asking = False, [], {}
        for address, answer in answers.items():
            if isinstance(answer, StoreError):
                failed.append((address, answer))
                sending.open.extend(shares[address])
                continue
            for (_, position), response in zip(sent[address], answer, strict=False):  # WAIT's responses come last
                if position is not None:
                    pause = _record_response(sending, position, response, address, topology) or pause
            if cluster.wait.replicas:
                doubts.append((address, answer))
        for address, answer in doubts:
            yield from _check_replica_ack(address, [each for each, _ in sent[address]], answer, cluster)
        if failed:
            yield from _give_up_unless_moved(failed, cluster)
        if pause:
            seconds = next(sending.pauses, None)
            if seconds is None:
                break
            yield RoutingPause(seconds)
    return sending.replies


def _record_response(
    sending: _PendingExchange, position: int, response: Any, asked: Address, topology: Topology
) -> bool:
    """Store a response, or the node to which the command goes next. Returns True if a pause is needed before that."""
    sending.replies[position] = response
    redirect = read_redirect(response, asked)
    if redirect is not None and sending.redirects < MAX_REDIRECTS:
        sending.redirects += 1
        sending.open.append(position)
        if redirect.asking:
            sending.asking[position] = redirect.address
        else:
            topology.move(redirect.slot, redirect.address)
    elif is_slot_moving(response) or (is_cluster_down(response) and sending.downs < MAX_DOWN_TRIES):
        sending.downs += is_cluster_down(response)
        sending.open.append(position)
        topology.stale = True
        return True
    return False


def _give_up_unless_moved(failed: list[tuple[Address, StoreError]], cluster: Cluster) -> Plan[RoutingRequest, None]:
    """Handle nodes that failed. If nothing was sent and other nodes own their slots by now, the commands go there.
    Otherwise this raises the node's error."""
    cluster.topology.stale = True
    unclear = next((error for _, error in failed if not _is_unsent(error)), None)
    if unclear is not None:
        raise unclear
    yield from learn_topology(cluster)
    owners = cluster.topology.primaries()
    for address, error in failed:
        if address in owners:
            cluster.topology.stale = True
            if isinstance(error, StoreUnreachable):
                raise StoreUnreachable(str(error), node=node_name(address)) from error
            raise error


def _is_unsent(error: StoreError) -> bool:
    return isinstance(error, StoreUnavailable)


def _with_replica_ack(commands: Exchange, cluster: Cluster) -> Exchange:
    return replicas.append_wait(commands, cluster.wait) if cluster.wait.replicas else commands


def _check_replica_ack(
    address: Address, commands: Exchange, responses: Any, cluster: Cluster
) -> Plan[RoutingRequest, None]:
    if not replicas.find_executed(commands, responses):
        return
    doubt = replicas.first_unacked(commands, responses)
    if doubt is not None:
        responses = (yield ScatterRequest({address: replicas.build_wait_again(doubt, cluster.wait)}))[address]
        if isinstance(responses, StoreError):
            raise replicas.unacked_error(responses) from responses
    replicas.check_replica_ack(responses, cluster.wait, node_name(address))


def cluster_name(nodes: Iterable[Address]) -> str:
    """The cluster's name for messages. It never contains a password."""
    return "the Redis cluster at " + ",".join(f"{host}:{port}" for host, port in nodes)


def node_name(address: Address) -> str:
    return f"Redis at {address[0]}:{address[1]}"
