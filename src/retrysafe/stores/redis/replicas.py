"""Replication that is waited for: `?wait=1`. Nobody is told "yours" before so many replicas have it.

Redis replicates behind the answer. A replica that is promoted may lack what was acknowledged last, and then a key can
run twice. WAIT holds the answer back until replicas have everything this connection has written. It knows nothing of
what others wrote, though, and a replayed answer or an operation that recognises its own earlier success writes nothing.
So each exchange first touches a key of ours (its expiry is set anew, which even a full server takes): what stands
before that in the replication stream, whoever wrote it, is then on the replicas, too.

Not reached in time is not refused: the primary has it, and may be the only one. That is StoreUnclear.
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
    """How many replicas must have it, and for how many seconds they are waited for."""

    replicas: int
    timeout: float = 2.0

    def build_command(self) -> Command:
        return (b"WAIT", encode_number(self.replicas), encode_number(max(1, int(self.timeout * 1000))))


NO_WAIT = ReplicaWait(0)


def with_replica_ack(plan: Plan[list[Command], R], wait: ReplicaWait, server: str) -> Plan[list[Command], R]:
    """The same plan, each of its exchanges on the replicas before it goes on."""
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
    """Those commands, and behind them what proves that replicas have them."""
    return [*commands, (b"PEXPIRE", marker_key(_find_key(commands)), _MARKER_TTL_MS), wait.build_command()]


def find_executed(commands: Sequence[Command], responses: Sequence[Any]) -> list[Command]:
    """The commands that were done. There is nothing to prove about those that were refused."""
    pairs = zip(commands, responses, strict=False)  # the proof's responses stand behind
    return [each for each, response in pairs if _has_key(each) and not isinstance(response, Exception)]


def first_unacked(commands: Sequence[Command], responses: Sequence[Any]) -> Command | None:
    """A command that was done while the mark behind it was not set: it did not exist yet, or its slot moved."""
    done = find_executed(commands, responses)
    return done[0] if done and responses[len(commands)] != 1 else None


def build_wait_again(command: Command, wait: ReplicaWait) -> list[Command]:
    return [(b"SET", marker_key(_find_key([command])), b"", b"PX", _MARKER_TTL_MS), wait.build_command()]


def unacked_error(error: StoreError) -> StoreUnclear:
    """The server was lost between the work and its proof."""
    return StoreUnclear(f"it was done, but not proven to be replicated: {error}")


def check_replica_ack(responses: Sequence[Any], wait: ReplicaWait, server: str) -> None:
    """Raise unless enough replicas have it."""
    marked, reached = responses[-2:]
    for each in (marked, reached):
        if isinstance(each, Exception):
            raise unacked_error(refusal_error(each, server)) from each
    if reached < wait.replicas:
        raise StoreUnclear(
            f"{server} has done it, but {reached} replicas instead of {wait.replicas} (?wait=) had it within "
            f"{wait.timeout:g} s: a failover now may lose it; send it again, and mend the replication"
        )


def marker_key(key: bytes) -> bytes:
    """A key of ours in the same slot as this one."""
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
        raise StoreError(f"nothing in {[each[0] for each in commands]} says which replicas to wait for")
    return found
