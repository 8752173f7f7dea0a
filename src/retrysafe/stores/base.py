"""The one seam. A store is two verbs over operations, in two colours; everything above knows only this.

Rules every store keeps, and testing/contract/ checks:

1.  `execute` is atomic and durable as far as the store promises: nobody is told "yours" before the commit.
2.  Any operation may be sent again after a failure; it recognises its own earlier success.
3.  `execute_many` takes operations of different keys. Either it returns one reply per operation, in order,
    all committed; or it raises, and then each operation may or may not have happened: send them again.
4.  An error before anything was sent is StoreUnavailable; after that it is StoreUnclear, unless the store said
    no. Nothing a driver raises gets out unmapped.
5.  Leases and expiry are judged by the store's clock, unless the operation brings its own `now`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from retrysafe.core.ops import Op
from retrysafe.core.records import Record
from retrysafe.errors import CorruptRecord, StoreError, UsageError

R = TypeVar("R")
Request = TypeVar("Request")
Row = TypeVar("Row")

Plan = Generator[Request, Any, R]
"""What to send and how to read it, for one operation: yields requests, is sent responses, returns the reply.
Written once per store; `follow` and `afollow` are all that differs between the colours."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can promise. Declared by the store, shown by the doctor, checked by the contract suite."""

    name: str
    durable: bool
    """Whether a record survives the death of every process that uses it."""
    shared: bool
    """Whether several processes may use it at once."""
    transactions: bool
    """Whether a record can commit together with its user's own writes."""
    clock: str
    """Whose clock judges leases: `store`, or `host` where the store has none of its own."""
    outbox: bool = False
    """Whether jobs can be staged in it (core/jobs.py)."""
    lists_by_id: bool = False
    """Whether its lists go by id and their cursors are ids as digits: then they can begin anywhere, by index."""
    wakes: bool = False
    """Whether it can wake who waits for a key: it has `announce(id)` and `wait(id, seconds)` (stores/notify.py)."""


@runtime_checkable
class Store(Protocol):
    """The sync colour. Safe to use from many threads."""

    @property
    def capabilities(self) -> Capabilities: ...
    def execute(self, op: Op[R]) -> R: ...
    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]: ...
    def migrate(self) -> list[str]: ...
    def close(self) -> None: ...


@runtime_checkable
class AsyncStore(Protocol):
    """The async colour. Belongs to the event loop it was first used on (lifetime.PerLoop keeps one per loop)."""

    @property
    def capabilities(self) -> Capabilities: ...
    async def execute(self, op: Op[R]) -> R: ...
    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]: ...
    async def migrate(self) -> list[str]: ...
    async def aclose(self) -> None: ...


def node_of(store: object, record_id: bytes) -> str:
    """Which node has a record, where a store has several and says so: a method `node(id)`. Else it is one, without a
    name. What goes wrong with one (`StoreUnreachable.node`) is no matter of the others' records."""
    find: Callable[[bytes], str] | None = getattr(store, "node", None)
    return "" if find is None else find(record_id)


def is_in_order(store: AsyncStore) -> bool:
    """Whether what was sent first is carried out first, also if its caller was cancelled meanwhile. A store says so
    itself (`in_order`): a queue of its own does that, a pool of connections does not."""
    return bool(getattr(store, "in_order", False))


class BatchRefused(StoreError):
    """One operation of a batch cannot go together with the others, and none of them happened: send them apart."""


class Backend(Protocol):
    """A kind of store, opened by URL. Registered under its scheme; see registry.py."""

    @property
    def capabilities(self) -> Capabilities: ...
    def open(self, url: str) -> Store: ...
    def open_async(self, url: str) -> AsyncStore: ...
    def schema(self, url: str) -> str: ...


def read_id_cursor(cursor: str) -> bytes:
    """The id after which the next page begins, where lists go by id."""
    try:
        return bytes.fromhex(cursor)
    except ValueError:
        raise UsageError(
            f"cursor {cursor[:80]!r} is not one of this store's: pass the cursor of the last page, or '' to begin"
        ) from None


def read_page(
    rows: Iterable[Row], read: Callable[[Row], Record], id_of: Callable[[Row], bytes]
) -> tuple[tuple[Record, ...], tuple[bytes, ...]]:
    """The records of a page, and the ids of those that cannot be read: they hide none of the others."""
    records, unreadable = [], []
    for row in rows:
        try:
            records.append(read(row))
        except CorruptRecord:
            unreadable.append(id_of(row))
    return tuple(records), tuple(unreadable)


def follow(plan: Plan[Request, R], send: Callable[[Request], Any]) -> R:
    """Drive a plan with a blocking `send`."""
    response: Any = None
    try:
        request = next(plan)
        while True:
            try:
                response = send(request)
            except Exception as error:
                request = plan.throw(error)
            else:
                request = plan.send(response)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def afollow(plan: Plan[Request, R], send: Callable[[Request], Awaitable[Any]]) -> R:
    """Drive a plan with an awaitable `send`."""
    response: Any = None
    try:
        request = next(plan)
        while True:
            try:
                response = await send(request)
            except Exception as error:
                request = plan.throw(error)
            else:
                request = plan.send(response)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
