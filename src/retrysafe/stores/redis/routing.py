"""Plans on a cluster, once for both colours: each command to the node that has its slot, and after it if it moved.

A command that is turned away with MOVED, ASK, TRYAGAIN or CLUSTERDOWN was not done, so it is sent again, to where it
belongs by then. What a node had answered before is kept: in one exchange no command is sent twice that was done.
"""

from __future__ import annotations

from collections.abc import Iterator
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
"""How often one exchange is redirected before it is called a loop."""

PAUSE_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, *[0.1] * 50)
"""Seconds between attempts while a slot is being moved key by key: five in all."""

MAX_DOWN_TRIES = 5
"""How often a cluster that calls itself down is asked again: an election takes longer than a caller should wait."""


class ScatterRequest(dict[Address, Exchange]):
    """What to send to which nodes at the same time; answered by a list of responses for each, or by an error."""


class RoutingPause(NamedTuple):
    """Wait for so long; answered by nothing."""

    seconds: float


RoutingRequest = ScatterRequest | RoutingPause


class Cluster(NamedTuple):
    """What routing knows of it."""

    topology: Topology
    wait: ReplicaWait
    name: str

    def node(self, key: bytes) -> str:
        """Who has this key, as far as is known; empty if it is not."""
        address = self.topology.owner_of(slot_of(key))
        return "" if address is None else node_name(address)


def route_plan(plan: Plan[Exchange, R], cluster: Cluster) -> Plan[RoutingRequest, R]:
    try:
        commands = next(plan)
        while True:
            commands = plan.send((yield from _exchange(commands, cluster)))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a plan's value is an R


def learn(cluster: Cluster) -> Plan[RoutingRequest, None]:
    """Ask the nodes, one after the other, who has what."""
    error: Exception | None = None
    for address in cluster.topology.known_addresses():
        answer = (yield ScatterRequest({address: [(b"CLUSTER", b"SLOTS")]}))[address]
        reply = answer if isinstance(answer, Exception) else answer[0]
        if not isinstance(reply, Exception):
            cluster.topology.learn(reply, address)
            return
        error = reply if isinstance(reply, StoreError) else _slots_refused_error(reply, node_name(address))
    raise StoreUnreachable(f"no node of {cluster.name} says who has which slot, the last: {error}") from error


def _slots_refused_error(error: Exception, server: str) -> Exception:
    if "cluster support disabled" in str(error):
        return StoreURLError(f"{server} is no cluster ({error}): give its URL as redis://host:port")
    return refusal_error(error, server)


class _PendingExchange:
    """One exchange on its way: which commands still have no answer, and where they go next."""

    def __init__(self, commands: Exchange) -> None:
        self.commands = commands
        self.replies: list[Any] = [None] * len(commands)
        self.loads = [command for command in commands if command[0] == b"SCRIPT"]
        self.open = [place for place, command in enumerate(commands) if command[0] != b"SCRIPT"]
        self.asking: dict[int, Address] = {}
        self.redirects = 0
        self.downs = 0
        self.pauses: Iterator[float] = iter(PAUSE_SECONDS)

    def group_by_node(self, topology: Topology) -> dict[Address, list[int]]:
        """The open commands by the nodes they go to. A slot that nobody has is asked of whoever is there."""
        shares: dict[Address, list[int]] = {}
        anybody = topology.known_addresses()[0]
        for place in self.open:
            address = self.asking.get(place) or topology.owner_of(slot_of(self.commands[place][3])) or anybody
            shares.setdefault(address, []).append(place)
        return shares

    def commands_for(self, places: list[int]) -> Iterator[tuple[Command, int | None]]:
        """What goes to one node, and whose answer each is. Scripts first: the node may be new to them."""
        for load in self.loads:
            yield load, None
        for place in places:
            if place in self.asking:
                yield (b"ASKING",), None
            yield self.commands[place], place


def _exchange(commands: Exchange, cluster: Cluster) -> Plan[RoutingRequest, list[Any]]:
    sending = _PendingExchange(commands)
    topology = cluster.topology
    while sending.open:
        if topology.stale:
            yield from learn(cluster)
        shares = sending.group_by_node(topology)
        sent = {address: list(sending.commands_for(places)) for address, places in shares.items()}
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
            for (_, place), response in zip(sent[address], answer, strict=False):  # the proof stands behind them
                if place is not None:
                    pause = _record_response(sending, place, response, address, topology) or pause
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


def _record_response(sending: _PendingExchange, place: int, response: Any, asked: Address, topology: Topology) -> bool:
    """Note an answer, or where to go with the command next. Whether to pause before that."""
    sending.replies[place] = response
    elsewhere = read_redirect(response, asked)
    if elsewhere is not None and sending.redirects < MAX_REDIRECTS:
        sending.redirects += 1
        sending.open.append(place)
        if elsewhere.asking:
            sending.asking[place] = elsewhere.address
        else:
            topology.move(elsewhere.slot, elsewhere.address)
    elif is_slot_moving(response) or (is_cluster_down(response) and sending.downs < MAX_DOWN_TRIES):
        sending.downs += is_cluster_down(response)
        sending.open.append(place)
        topology.stale = True
        return True
    return False


def _give_up_unless_moved(failed: list[tuple[Address, StoreError]], cluster: Cluster) -> Plan[RoutingRequest, None]:
    """A node could not be reached. If others have its slots by now the commands go there, if nothing was sent."""
    cluster.topology.stale = True
    unclear = next((error for _, error in failed if not _is_unsent(error)), None)
    if unclear is not None:
        raise unclear
    yield from learn(cluster)
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


def node_name(address: Address) -> str:
    return f"Redis at {address[0]}:{address[1]}"
