"""The circuit breaker: new claims are refused at once while the store cannot be reached. Sync and async performers use
it; it has no clock and does no I/O.

Without it, each caller would wait for the connection timeout. After one failure to connect, new claims are refused,
and only claims: nothing has begun for them. Owners go on trying to settle. The first operation that gets through, or a
probe in the background, closes the circuit again.

A store of several nodes says which node failed (`StoreUnreachable.node`) and which node has a record (`node(id)`). The
keys of the other nodes are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.ops import Claim, Lookup, Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnreachable

FIRST_PROBE_SECONDS, MAX_PROBE_SECONDS = 0.25, 2.0
"""Seconds between two probes: at first, and at most."""

TRIAL_CLAIM_SECONDS = 3.0
"""How often one claim is let through as a trial."""

WHOLE_STORE = ""
"""The name of the only node, or of all nodes together."""


class UnreachableNode(NamedTuple):
    """A node that could not be reached."""

    since: float
    why: str
    sample: bytes
    """The id of a record on this node, for the probe."""


class CircuitBreaker:
    """`away` holds the nodes to which no claims are sent. `node` tells which node has a record, where a store has
    several."""

    __slots__ = ("_node", "_tried", "away")

    def __init__(self, node: Callable[[bytes], str] | None = None) -> None:
        self._node = node
        self._tried: dict[str, float] = {}
        self.away: dict[str, UnreachableNode] = {}

    def record_failure(self, op: Op[Any], error: StoreError, now: float) -> None:
        """Note a failed operation. Contention (a locked row, an exhausted pool) says nothing about the connection."""
        if proves_contact(error):
            self.record_answer(op)
        elif isinstance(error, StoreUnreachable) and (error.node == WHOLE_STORE or self._node is not None):
            self.away.setdefault(error.node, UnreachableNode(now, str(error), getattr(op, "id", b"") or bytes(32)))

    def record_answer(self, op: Op[Any]) -> None:
        if self.away:
            self.away.pop(WHOLE_STORE, None)
            self.away.pop(self._node_of(op), None)

    def refusal_error(self, op: Op[Any], now: float) -> StoreUnreachable | None:
        """The error for a new claim; None if the operation is to be sent."""
        if not isinstance(op, Claim):
            return None
        node = WHOLE_STORE if WHOLE_STORE in self.away else self._node_of(op)
        found = self.away.get(node)
        if found is None or self._may_try(node, found, now):
            return None
        return StoreUnreachable(
            f"the store has not been reached for {max(now - found.since, 0.0):.1f} s, so new claims are refused at "
            f"once; it is asked again every {MAX_PROBE_SECONDS:g} s or sooner. The last error: {found.why}"
        )

    def _may_try(self, node: str, found: UnreachableNode, now: float) -> bool:
        """Let one claim through every few seconds: the background probe may have ended together with its event loop."""
        if now - self._tried.get(node, found.since) < TRIAL_CLAIM_SECONDS:
            return False
        self._tried[node] = now
        return True

    def build_probes(self) -> list[tuple[str, Lookup]]:
        """One lookup for each node that is away. A lookup costs a round trip and changes nothing."""
        return [(node, Lookup(each.sample)) for node, each in list(self.away.items())]

    def mark_back(self, node: str) -> None:
        """Note that the probe of a node was answered, by that node or by the one that has its records now."""
        self.away.pop(node, None)
        self._tried.pop(node, None)

    def _node_of(self, op: Op[Any]) -> str:
        record_id = getattr(op, "id", None)
        return WHOLE_STORE if self._node is None or record_id is None else self._node(record_id)


def proves_contact(error: Exception) -> bool:
    """Whether an error proves that the store was reached."""
    return not isinstance(error, StoreOutage)


def next_pause(pause: float) -> float:
    """The pause before the next probe: twice the last one."""
    return min(pause * 2, MAX_PROBE_SECONDS)
