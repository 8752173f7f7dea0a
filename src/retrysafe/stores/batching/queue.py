"""What waits, how a batch is taken out of it, and what everybody is told. The same for both colours."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from retrysafe.core.ops import Claim, Complete, Op, Release, Renew, Withdraw
from retrysafe.errors import StoreOutage, StoreUnavailable, StoreUnclear, StoreUnreachable

BATCHED_KINDS = (Claim, Complete, Renew, Release, Withdraw)
MAX_BATCH_OPS = 128
MAX_QUEUED_OPS = 10_000
QUEUE_TIMEOUT_SECONDS = 30.0
"""Seconds an operation may wait for its turn; then the store is as good as away."""

MIN_BATCH_OPS = 16
"""Operations that are worth a flight of their own beside another; with fewer, what it costs is mostly the trip."""

SLOW_BATCH_SECONDS = 0.05
"""Seconds after which a flight is not waited for if there may be another."""

MAX_IN_FLIGHT_BATCHES = 8
"""Flights under way at once, the slow ones included: the user's pool has other work too."""

SEND_UNBATCHED = object()
"""Told instead of a reply: send it yourself, by the plain path."""

Result = Any | BaseException


class PendingItem(Protocol):
    """An operation in a queue, and where its reply goes."""

    op: Op[Any]
    since: float

    @property
    def left(self) -> bool: ...
    def deliver(self, result: Result) -> None: ...


W = TypeVar("W", bound=PendingItem)


L = TypeVar("L")


def build_queues(store: Any, make: Callable[[int], L]) -> dict[type[Any], L]:
    """Which kind waits where. A store that takes several kinds in one batch has one lane for all of them: batches
    are larger then, and fewer. It says how many of them may be under way at once (`flights`)."""
    if getattr(store, "mixed_batches", False):
        return dict.fromkeys(BATCHED_KINDS, make(getattr(store, "max_in_flight", 1)))
    return {kind: make(1) for kind in BATCHED_KINDS}


def take_batch(queue: deque[W], limit: int, now: float) -> list[W]:
    """The next batch: at most `limit`, one operation of a key, in their order. Who waited too long is told so."""
    batch: list[W] = []
    seen: set[bytes] = set()
    again: list[W] = []
    while queue and len(batch) < limit and len(again) < limit:
        waiting = queue.popleft()
        record_id: bytes = waiting.op.id  # type: ignore[attr-defined]  # every kind that has a lane has an id
        if waiting.left:
            continue
        if now - waiting.since > QUEUE_TIMEOUT_SECONDS:
            waiting.deliver(queue_timeout_error())
        elif record_id in seen:
            again.append(waiting)
        else:
            seen.add(record_id)
            batch.append(waiting)
    queue.extendleft(reversed(again))
    return batch


def compute_batch_limit(waiting: int, in_flight_ops: int, max_in_flight: int, limit: int) -> int:
    """How many of those who wait one flight takes. Where there may be several, an even part of all: else one would have
    them all and the others would have nothing to do."""
    return (
        limit if max_in_flight == 1 else min(limit, max(MIN_BATCH_OPS, -(-(waiting + in_flight_ops) // max_in_flight)))
    )


def split_in_half(batch: list[W]) -> tuple[list[W], list[W]]:
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def deliver_all(batch: Sequence[PendingItem], results: Sequence[Result]) -> None:
    if len(batch) != len(results):
        raise StoreUnclear(f"the store gave {len(results)} replies to {len(batch)} operations")
    for waiting, result in zip(batch, results, strict=True):
        waiting.deliver(result)


def fail_all(batch: Iterable[PendingItem], error: StoreOutage) -> None:
    """One error each: an exception that several callers raise collects the tracebacks of all of them."""
    kinds = (StoreUnclear, StoreUnreachable)
    kind = next((each for each in kinds if isinstance(error, each)), StoreUnavailable)
    for waiting in batch:
        own: StoreOutage = kind(str(error))
        if isinstance(own, StoreUnreachable) and isinstance(error, StoreUnreachable):
            own.node = error.node
        own.__cause__ = error
        waiting.deliver(own)


def batch_stopped_error(who: str, error: BaseException) -> StoreUnclear:
    return StoreUnclear(f"the {who} of a batch stopped: {type(error).__name__}: {error}")


def queue_timeout_error() -> StoreUnavailable:
    return StoreUnavailable(
        f"it waited {QUEUE_TIMEOUT_SECONDS:.0f} s for the store; the store is too slow for the load"
    )


def queue_full_error(size: int) -> StoreUnavailable:
    return StoreUnavailable(f"{size} operations wait for the store already; it is too slow for the load, try again")
