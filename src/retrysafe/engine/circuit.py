"""Whether the store is there, as far as this process knows: a decision, for both colours. No clock and no I/O.

A store that cannot be reached makes everybody wait for the connection's timeout before they are told so. So after one
failure to connect, new claims are refused at once, and only they: nothing has begun for them. Whoever owns a key goes
on trying to settle it, and the first of those that gets through, or a probe in the background, lets claims in again.

A store of several nodes says which one it was (`StoreUnreachable.node`) and which one has a record (`node(id)`): the
keys of the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.ops import Claim, Lookup, Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnreachable

FIRST_PROBE_SECONDS, MAX_PROBE_SECONDS = 0.25, 2.0
"""Seconds between two probes: the first pause, and the longest."""

TRIAL_CLAIM_SECONDS = 3.0
"""Seconds after which a claim is let through to see for itself."""

WHOLE_STORE = ""
"""The node of a store that has one, or all of them."""


class UnreachableNode(NamedTuple):
    """A node that could not be reached."""

    since: float
    why: str
    sample: bytes
    """A record of its, for the probe."""


class CircuitBreaker:
    """`away`: the nodes that claims are not sent to. `node` says which one has a record, where a store has several."""

    __slots__ = ("_node", "_tried", "away")

    def __init__(self, node: Callable[[bytes], str] | None = None) -> None:
        self._node = node
        self._tried: dict[str, float] = {}
        self.away: dict[str, UnreachableNode] = {}

    def record_failure(self, op: Op[Any], error: StoreError, now: float) -> None:
        """An operation failed. Contention (a row that is held, a pool that is exhausted) says nothing either way."""
        if proves_contact(error):
            self.record_answer(op)
        elif isinstance(error, StoreUnreachable) and (error.node == WHOLE_STORE or self._node is not None):
            self.away.setdefault(error.node, UnreachableNode(now, str(error), getattr(op, "id", b"") or bytes(32)))

    def record_answer(self, op: Op[Any]) -> None:
        if self.away:
            self.away.pop(WHOLE_STORE, None)
            self.away.pop(self._node_of(op), None)

    def refusal_error(self, op: Op[Any], now: float) -> StoreUnreachable | None:
        """What to tell a new claim; None: ask the store."""
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
        """One claim every few seconds goes through as its own probe: the probe in the background may have ended with
        its event loop."""
        if now - self._tried.get(node, found.since) < TRIAL_CLAIM_SECONDS:
            return False
        self._tried[node] = now
        return True

    def build_probes(self) -> list[tuple[str, Lookup]]:
        """One for each node that is away: they cost a round trip, and change nothing."""
        return [(node, Lookup(each.sample)) for node, each in list(self.away.items())]

    def mark_back(self, node: str) -> None:
        """Its probe was answered: by itself, or by whoever has its records now."""
        self.away.pop(node, None)
        self._tried.pop(node, None)

    def _node_of(self, op: Op[Any]) -> str:
        record_id = getattr(op, "id", None)
        return WHOLE_STORE if self._node is None or record_id is None else self._node(record_id)


def proves_contact(error: Exception) -> bool:
    """Whether an error is proof that the store was reached. Others than its own are told to whoever claims next."""
    return not isinstance(error, StoreOutage)


def next_pause(pause: float) -> float:
    """Twice as long each time."""
    return min(pause * 2, MAX_PROBE_SECONDS)
