"""The waiting queue of batching: limits, how a batch is taken, and how results are delivered. The sync and the async
batching share this file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew, Withdraw
from retrysafe.core.shared_claims import can_follow, share_reply
from retrysafe.errors import StoreOutage, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import Capabilities

BATCHED_KINDS = (Claim, Complete, Renew, Release, Withdraw)
MAX_BATCH_OPS = 128
MAX_QUEUED_OPS = 10_000
QUEUE_TIMEOUT_SECONDS = 30.0
"""How long an operation may wait in a queue. After that the store counts as unavailable."""

MIN_BATCH_OPS = 16
"""How many operations justify one more batch beside a batch in flight. A smaller batch costs mostly its round trip."""

SLOW_BATCH_SECONDS = 0.05
"""A batch in flight for longer than this is slow. The queue does not wait for it if another batch is allowed."""

MAX_IN_FLIGHT_BATCHES = 8
"""How many batches may be in flight at once, slow ones included. The user's connection pool has other work, too."""

SEND_UNBATCHED = object()
"""Delivered instead of a reply. The caller sends its operation itself, without batching."""

Result = Any | BaseException

NOBODY: list[Any] = []
"""The followers of an operation that has none, shared by all of them and never changed."""


class PendingItem(Protocol):
    """An operation in a queue, and where its reply is delivered."""

    op: Op[Any]
    since: float
    """When the operation joined the queue, on the monotonic clock."""
    followers: list[Any]
    """Claims of the same key that are answered by this one's reply (core/shared_claims.py). NOBODY while there are
    none."""

    @property
    def left(self) -> bool: ...
    def deliver(self, result: Result) -> None: ...


OnBatch = Callable[[Sequence[PendingItem]], None]
"""Called with each batch just before it is sent."""


def ignore_batch(batch: Sequence[PendingItem]) -> None:
    """What is called until something else is set."""


P = TypeVar("P", bound=PendingItem)
Q = TypeVar("Q")


def build_queues(declared: Capabilities, make: Callable[[int], Q]) -> dict[type[Any], Q]:
    """The queue of each kind of operation. All kinds share one queue if the store declares `mixed_batches`; batches are
    then larger and fewer. `make(n)` builds a queue that may have n batches in flight.

    Renewals have a queue of their own where several batches may be in flight. Such a store waits for locked rows, and
    a lease must not wait for the row of another call (I33). Renewals are rare: sending them with others saves nothing.
    """
    if declared.mixed_batches:
        shared = make(declared.max_in_flight)
        renewals = make(declared.max_in_flight) if declared.max_in_flight > 1 else shared
        return {**dict.fromkeys(BATCHED_KINDS, shared), Renew: renewals}
    return {kind: make(1) for kind in BATCHED_KINDS}


def take_batch(queue: deque[P], limit: int, now: float) -> list[P]:
    """Take the next batch: at most `limit` operations, in order, and one operation per key. Claims of one key are one
    operation: the first of them leads, the others follow it. Operations that waited too long get a timeout error."""
    batch: list[P] = []
    seen: dict[bytes, P] = {}
    put_back: list[P] = []
    while queue and len(batch) < limit and len(put_back) < limit:
        pending = queue.popleft()
        record_id: bytes = pending.op.id  # type: ignore[attr-defined]  # every batched kind has an id
        if pending.left:
            continue
        if now - pending.since > QUEUE_TIMEOUT_SECONDS:
            pending.deliver(queue_timeout_error())
        elif record_id not in seen:
            seen[record_id] = pending
            batch.append(pending)
        elif _follows(pending.op, seen[record_id].op):
            leader = seen[record_id]
            if leader.followers is NOBODY:
                leader.followers = []
            leader.followers.append(pending)
        else:
            put_back.append(pending)
    queue.extendleft(reversed(put_back))
    return batch


def _follows(op: Op[Any], leader: Op[Any]) -> bool:
    return type(op) is Claim and type(leader) is Claim and can_follow(op, leader)


def deliver_to_followers(followers: Sequence[PendingItem], result: Result) -> None:
    """Tell each follower its share of the leader's reply. After an outage they fail, too; otherwise a follower without
    a share sends its claim itself."""
    if isinstance(result, StoreOutage):
        fail_all(followers, result)
        return
    for pending in followers:
        op: Any = pending.op
        shared = share_reply(op, result) if isinstance(result, ClaimReply) else None
        pending.deliver(SEND_UNBATCHED if shared is None else shared)


def compute_batch_limit(waiting: int, in_flight_ops: int, max_in_flight: int, limit: int) -> int:
    """How many waiting operations one batch takes. If several batches may be in flight, each takes an even share:
    otherwise the first batch would take all operations and leave none for the others."""
    return (
        limit if max_in_flight == 1 else min(limit, max(MIN_BATCH_OPS, -(-(waiting + in_flight_ops) // max_in_flight)))
    )


def split_in_half(batch: list[P]) -> tuple[list[P], list[P]]:
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def deliver_all(batch: Sequence[PendingItem], results: Sequence[Result]) -> None:
    if len(batch) != len(results):
        raise StoreUnclear(f"the store gave {len(results)} replies to {len(batch)} operations")
    for pending, result in zip(batch, results, strict=True):
        pending.deliver(result)


def fail_all(batch: Iterable[PendingItem], error: StoreOutage) -> None:
    """Deliver a copy of the error to each caller. If several callers raised one exception object, it would collect the
    tracebacks of all of them."""
    kinds = (StoreUnclear, StoreUnreachable)
    kind = next((each for each in kinds if isinstance(error, each)), StoreUnavailable)
    for pending in batch:
        own: StoreOutage = kind(str(error))
        if isinstance(own, StoreUnreachable) and isinstance(error, StoreUnreachable):
            own.node = error.node
        own.__cause__ = error
        pending.deliver(own)


def batch_stopped_error(who: str, error: BaseException) -> StoreUnclear:
    return StoreUnclear(f"the {who} of a batch stopped: {type(error).__name__}: {error}")


def queue_timeout_error() -> StoreUnavailable:
    return StoreUnavailable(
        f"the operation waited {QUEUE_TIMEOUT_SECONDS:.0f} s for the store; the store is too slow for the load"
    )


def queue_full_error(size: int) -> StoreUnavailable:
    return StoreUnavailable(f"{size} operations wait for the store already; it is too slow for the load, try again")
