"""The seam between retrysafe and a store. A store has two verbs, `execute` and `execute_many`, sync or async. All other
code uses only what this file declares.

Every store keeps these rules, and testing/contract/ checks them:

1.  `execute` is atomic and durable as far as the store promises. The store commits a claim before it grants the claim.
2.  A caller may send any operation again after a failure. The store recognises the operation's own earlier success.
3.  `execute_many` takes operations of different keys. Either it returns one reply per operation, in order, and all are
    committed. Or it raises, and then each operation may or may not have happened: the caller sends them again.
4.  An error before anything was sent is StoreUnavailable. After that it is StoreUnclear, unless the store refused the
    operation. A store translates every exception of its driver.
5.  The store's clock decides leases and expiry, unless the operation brings its own `now`.

A store declares what else it can do in two ways: by fields of `Capabilities`, and by the methods of the optional
protocols below (`Notifying`, `FastRead`, `InOrder`, `Submitting`, `HasNodes`, `HasTables`). Both are read once, when a
store is opened or wrapped. A store that declares nothing works. docs/howto/write-a-store.md lists all fields and
protocols.

This file is public. It changes by the deprecation policy in CONTRIBUTING.md, together with the contract suite.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from retrysafe.core.deprecation import warn_renamed
from retrysafe.core.ops import Op
from retrysafe.core.records import Record
from retrysafe.errors import CorruptRecord, MissingDriver, StoreError, UsageError

if TYPE_CHECKING:
    import asyncio

    from retrysafe.core.ops import Claim, ClaimReply

R = TypeVar("R")
Request = TypeVar("Request")
Row = TypeVar("Row")

Plan = Generator[Request, Any, R]
"""What to send for one operation, and how to read the responses. A plan yields requests, is sent responses, and returns
the reply. Each store writes its plans once; `follow` and `afollow` run them in sync and async code."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store declares. The doctor shows it, and the contract suite checks it.

    The fields up to `wakes` are promises. The fields after it say how to use the store well: their defaults are always
    right, and only cost speed.
    """

    name: str
    """The store's name, for messages and pages."""
    durable: bool
    """A record survives the death of every process that uses the store."""
    shared: bool
    """Several processes may use the store at once."""
    transactions: bool
    """A record can commit together with the user's own writes."""
    clock: str
    """The clock that decides leases: `store`, or `host` if the store has no clock."""
    outbox: bool = False
    """Jobs can be staged in the store (core/jobs.py)."""
    lists_by_id: bool = False
    """Lists are sorted by id, and a cursor is an id in hexadecimal. A list can then begin at any id, by index."""
    backlog: Literal["none", "scan", "index"] = "none"
    """Whether the store answers `Backlog` and `JobBacklog` (core/backlog.py), and at what cost. `index`: the cost grows
    with what is open, so a background service may ask. `scan`: the cost grows with all records. `none`: it does not."""
    wakes: bool = False
    """The store notifies callers that wait for a key. It implements `Notifying`."""
    finds_keys: bool = False
    """A list of one key (`List.key`) costs no more than a page: the store reads the keys alone, or has an index of
    them. Elsewhere a key without its scope is searched for record by record."""
    mixed_batches: bool = False
    """`execute_many` takes operations of several kinds as efficiently as operations of one kind. Batching then keeps
    one queue for all kinds; otherwise it keeps one queue per kind."""
    max_in_flight: int = 1
    """How many batches the store executes well at the same time. Batching reads it only with `mixed_batches`."""
    native_batching: bool = False
    """Concurrent calls already share round trips. `open_store(url, batching=True)` adds no batching of its own."""
    has_install_id: bool = False
    """The store answers `Install`. A cache that several stores share keeps their entries apart by it."""
    caches: bool = False
    """The store may answer a claim from a cache while the server is unreachable. Claims are then always sent."""


@runtime_checkable
class Store(Protocol):
    """A sync store. Many threads may use it at once."""

    @property
    def capabilities(self) -> Capabilities: ...
    def execute(self, op: Op[R]) -> R: ...
    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]: ...
    def migrate(self) -> list[str]: ...
    def close(self) -> None: ...


@runtime_checkable
class AsyncStore(Protocol):
    """An async store. It belongs to the event loop it was first used on (lifetime.PerLoopStore keeps one per loop)."""

    @property
    def capabilities(self) -> Capabilities: ...
    async def execute(self, op: Op[R]) -> R: ...
    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]: ...
    async def migrate(self) -> list[str]: ...
    async def aclose(self) -> None: ...


# Optional protocols -------------------------------------------------------------------------------


@runtime_checkable
class Notifying(Protocol):
    """A sync store that notifies waiting callers. It also declares `Capabilities.wakes`. `announce` says that a record
    was settled; `wait` returns when that happens, or after `seconds`. A lost notification is allowed: callers poll."""

    def announce(self, record_id: bytes) -> None: ...
    def wait(self, record_id: bytes, seconds: float) -> None: ...


@runtime_checkable
class AsyncNotifying(Protocol):
    """The async twin of `Notifying`."""

    async def announce(self, record_id: bytes) -> None: ...
    async def wait(self, record_id: bytes, seconds: float) -> None: ...


@runtime_checkable
class FastRead(Protocol):
    """A store that can answer some claims by a read that waits for nothing. `try_read_claim` returns a replay or a
    refusal, or None if the claim has to write. Batching calls it before it makes a claim wait. The method is a plain
    function in async stores, too."""

    def try_read_claim(self, op: Claim) -> ClaimReply | None: ...


@runtime_checkable
class InOrder(Protocol):
    """An async store that executes operations in the order in which they were sent, also if the caller of one was
    cancelled meanwhile: `in_order` is true. A store with a queue of its own does that; a pool of connections does not.
    It is not a field of `Capabilities`: a wrapper may pass on the capabilities of its inner store and still reorder."""

    @property
    def in_order(self) -> bool: ...


@runtime_checkable
class Submitting(Protocol):
    """An async store that can send an operation without a coroutine. `submit` sends it, alone or together with others,
    and returns the future of its reply; or None if the operation has to be executed. The future ends as `execute` would
    (the reply, or an error), or with EXECUTE_INSTEAD. If the caller is cancelled, the operation is dropped or its reply
    is. It must do exactly what `execute` does: callers use one or the other (engine/aperform.py)."""

    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None: ...


EXECUTE_INSTEAD = object()
"""In the place of a reply to `submit`: execute the operation. As any operation, it may be sent again."""

Submit = Callable[[Op[Any]], "asyncio.Future[Any] | None"]


@runtime_checkable
class HasNodes(Protocol):
    """A store with several nodes. `node` names the node of a record. An outage of one node
    (`StoreUnreachable.node`) then stops only claims of that node's records."""

    def node(self, record_id: bytes) -> str: ...


@runtime_checkable
class HasTables(Protocol):
    """A store whose tables a transaction of the user can write to. `names` is a `stores.sql.names.TableNames`, or the
    `Collections` of MongoDB. Stores with `Capabilities.transactions` have it."""

    @property
    def names(self) -> object: ...


class Backend(Protocol):
    """A kind of store, opened by URL and registered under its scheme (registry.py)."""

    @property
    def capabilities(self) -> Capabilities: ...
    def open(self, url: str) -> Store: ...
    def open_async(self, url: str) -> AsyncStore: ...
    def schema(self, url: str) -> str: ...


@runtime_checkable
class NamesTables(Protocol):
    """A backend whose stores have tables (`HasTables`). `names` reads their names from a URL and opens nothing."""

    def names(self, url: str) -> object: ...


# What a store declares, read once -----------------------------------------------------------------

_OLD_ATTRIBUTES = {
    "mixes": "mixed_batches",
    "flights": "max_in_flight",
    "batches_itself": "native_batching",
    "caches": "caches",
}
"""Attributes of a store in release 0.1, and the fields of `Capabilities` that replaced them."""


def read_capabilities(store: Store | AsyncStore) -> Capabilities:
    """What the store declares. Attributes of release 0.1 count for one more release, with a DeprecationWarning."""
    old = [(name, field) for name, field in _OLD_ATTRIBUTES.items() if hasattr(store, name)]
    for name, field in old:
        warn_renamed(f"the attribute {type(store).__name__}.{name}", f"Capabilities.{field}", stacklevel=4)
    declared = store.capabilities
    return replace(declared, **{field: getattr(store, name) for name, field in old}) if old else declared


def adopt_old_attributes(store: Store) -> Store:
    """The store itself; or, if it has attributes of release 0.1, a wrapper that declares them as capabilities."""
    declared = read_capabilities(store)
    if declared == store.capabilities:
        return store
    from retrysafe.stores.wrappers import DeclaredStore

    return DeclaredStore(store, declared)


def adopt_old_async_attributes(store: AsyncStore) -> AsyncStore:
    """The async twin of `adopt_old_attributes`."""
    declared = read_capabilities(store)
    if declared == store.capabilities:
        return store
    from retrysafe.stores.wrappers import AsyncDeclaredStore

    return AsyncDeclaredStore(store, declared)


def provides(store: object, protocol: Any) -> bool:
    """Whether a store has every member of a protocol. Since Python 3.12 `isinstance` looks at classes only. This sees
    also what a wrapper passes on by `__getattr__`."""
    return all(hasattr(store, name) for name in _list_members(protocol))


@cache
def _list_members(protocol: Any) -> frozenset[str]:
    return frozenset(name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_"))


def find_notifier(store: Store) -> Notifying | None:
    """The store as a `Notifying`, if it declares `wakes`."""
    if not store.capabilities.wakes:
        return None
    if not provides(store, Notifying):
        raise _wakes_error(store)
    return cast("Notifying", store)


def find_async_notifier(store: AsyncStore) -> AsyncNotifying | None:
    """The store as an `AsyncNotifying`, if it declares `wakes`."""
    if not store.capabilities.wakes:
        return None
    if not provides(store, AsyncNotifying):
        raise _wakes_error(store)
    return cast("AsyncNotifying", store)


def _wakes_error(store: object) -> UsageError:
    return UsageError(
        f"{type(store).__name__} declares Capabilities.wakes, but has no announce(id) and wait(id, seconds); "
        "add both, or leave wakes out"
    )


def find_ordered(store: AsyncStore) -> InOrder | None:
    """The store as an `InOrder`; None if it does not say that it keeps the order."""
    return cast("InOrder", store) if provides(store, InOrder) else None


def find_submit(store: AsyncStore) -> Submit | None:
    """The store's `submit`; None if it has none. A subclass that overrides `execute` alone has none, either: its own
    `execute` must see every operation."""
    for kind in type(store).__mro__:
        if "submit" in vars(kind):
            return cast("Submitting", store).submit
        if "execute" in vars(kind):
            return None
    return None


def find_node_lookup(store: object) -> Callable[[bytes], str]:
    """A function that names the node of a record. A store that has no nodes is one node without a name."""
    return cast("HasNodes", store).node if provides(store, HasNodes) else _name_no_node


def _name_no_node(record_id: bytes) -> str:
    return ""


class BatchRefused(StoreError):
    """One operation of a batch cannot go together with the others. None of them happened: send them one by one.

    Or some of them did: then `replies` has, for each operation in order, its reply, or the error that says that it did
    nothing."""

    def __init__(self, message: str, replies: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.replies = replies


# Helpers for stores -------------------------------------------------------------------------------


@contextmanager
def driver_import(store: str, module: str, extra: str) -> Iterator[None]:
    """Around the import of a module that needs a driver. Without the driver it raises MissingDriver, which names the
    module that was not found, or `module` if that is not known."""
    try:
        yield
    except ImportError as error:
        raise MissingDriver(store, error.name or module, extra) from error


def read_id_cursor(cursor: str) -> bytes:
    """The id after which the next page begins, in a store that lists by id."""
    try:
        return bytes.fromhex(cursor)
    except ValueError:
        raise UsageError(
            f"cursor {cursor[:80]!r} is not one of this store's: pass the cursor of the last page, or '' to begin"
        ) from None


def read_page(
    rows: Iterable[Row], read: Callable[[Row], Record], id_of: Callable[[Row], bytes]
) -> tuple[tuple[Record, ...], tuple[bytes, ...]]:
    """The records of a page, and the ids of the rows that cannot be read. A corrupt row does not hide the others."""
    records, unreadable = [], []
    for row in rows:
        try:
            records.append(read(row))
        except CorruptRecord:
            unreadable.append(id_of(row))
    return tuple(records), tuple(unreadable)


def follow(plan: Plan[Request, R], send: Callable[[Request], Any]) -> R:
    """Run a plan with a blocking `send`."""
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
    """Run a plan with an awaitable `send`."""
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


class LockNotAvailable(Exception):
    """Another transaction holds the row or document, or SQLite's write lock, and the wait for it timed out (I28). A
    store throws it into the plan, and a claim then answers Busy. A user's transaction reads without the lock. It never
    reaches the user's code."""
