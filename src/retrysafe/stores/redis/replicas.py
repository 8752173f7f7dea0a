"""Synchronous replication with WAIT: `?wait=1`. A claim is granted only after so many replicas have it.

Redis replicates asynchronously. A replica that is promoted may lack the last acknowledged writes, and then a key can
run twice. WAIT blocks until replicas have everything that this connection has written. It does not cover what other
connections wrote, and a replay, or an operation that recognises its own earlier success, writes nothing. So each
exchange also touches a marker key of ours: it sets the key's expiry, which even a full server accepts. Everything
before this write in the replication stream, from any connection, is then on the replicas too.

Too few replicas in time is not a refusal: the primary has the write, and may be the only one. This is StoreUnclear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from retrysafe.errors import StoreError, StoreOutage, StoreUnclear
from retrysafe.stores.base import Plan
from retrysafe.stores.redis.failures import refusal_error
from retrysafe.stores.redis.rows import encode_number

R = TypeVar("R")
Command = tuple[bytes, ...]

_MARKER_TTL_MS = encode_number(100 * 365 * 24 * 3600 * 1000)


class ReplicaWait(NamedTuple):
    """How many replicas must have a write, and how many seconds to wait for them."""

    replicas: int
    timeout: float = 2.0

    def build_command(self) -> Command:
        return (b"WAIT", encode_number(self.replicas), encode_number(max(1, int(self.timeout * 1000))))


NO_WAIT = ReplicaWait(0)


def with_replica_ack(plan: Plan[list[Command], R], wait: ReplicaWait, server: str) -> Plan[list[Command], R]:
    """The same plan, but each of its exchanges waits until the replicas have it."""
    try:
        commands = next(plan)
        while True:
            responses = yield append_wait(commands, wait)
            own = responses[: len(commands)]
            if find_executed(commands, responses):
                doubt = first_unacked(commands, responses)
                if doubt is not None:
                    try:
                        responses = yield build_wait_again(doubt, wait)
                    except StoreOutage as error:
                        raise unacked_error(error) from error
                check_replica_ack(responses, wait, server)
            commands = plan.send(own)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a plan's value is an R


def append_wait(commands: Sequence[Command], wait: ReplicaWait) -> list[Command]:
    """The commands, followed by the marker write and WAIT."""
    return [*commands, (b"PEXPIRE", marker_key(_find_key(commands)), _MARKER_TTL_MS), wait.build_command()]


def find_executed(commands: Sequence[Command], responses: Sequence[Any]) -> list[Command]:
    """The commands that were executed. A command that was refused needs no replication."""
    pairs = zip(commands, responses, strict=False)  # the last two responses belong to the marker write and WAIT
    return [each for each, response in pairs if _has_key(each) and not isinstance(response, Exception)]


def first_unacked(commands: Sequence[Command], responses: Sequence[Any]) -> Command | None:
    """The first executed command if the marker write after it had no effect: the marker key did not exist yet, or its
    slot has moved. None if the marker was set."""
    done = find_executed(commands, responses)
    return done[0] if done and responses[len(commands)] != 1 else None


def build_wait_again(command: Command, wait: ReplicaWait) -> list[Command]:
    """Create the marker key of this command's slot, and wait once more."""
    return [(b"SET", marker_key(_find_key([command])), b"", b"PX", _MARKER_TTL_MS), wait.build_command()]


def unacked_error(error: StoreError) -> StoreUnclear:
    """The operation was executed, but the connection failed before WAIT confirmed the replication."""
    return StoreUnclear(f"it was done, but not confirmed as replicated: {error}")


def check_replica_ack(responses: Sequence[Any], wait: ReplicaWait, server: str) -> None:
    """Raise StoreUnclear unless enough replicas have the write."""
    marked, reached = responses[-2:]
    for each in (marked, reached):
        if isinstance(each, Exception):
            raise unacked_error(refusal_error(each, server)) from each
    if reached < wait.replicas:
        raise StoreUnclear(
            f"{server} has done it, but {reached} replicas instead of {wait.replicas} (?wait=) had it within "
            f"{wait.timeout:g} s: a failover now may lose it; send it again, and repair the replication"
        )


def marker_key(key: bytes) -> bytes:
    """The marker key in the same cluster slot as this key."""
    head, brace, _ = key.partition(b"}")
    if brace:
        return head + b"}:wait"
    prefix = key.removesuffix(b"meta")
    return b"%b{%b}:wait" % (prefix, key)


def _has_key(command: Command) -> bool:
    return command[0] == b"EVALSHA"


def _find_key(commands: Sequence[Command]) -> bytes:
    found = next((each[3] for each in commands if _has_key(each)), None)
    if found is None:
        raise StoreError(
            f"none of {[each[0] for each in commands]} has a key: it is unknown which replicas to wait for"
        )
    return found
