"""What a store declares, and how it is read: defaults, protocols, and the attributes of release 0.1."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import UsageError
from retrysafe.stores import base, registry
from retrysafe.stores.base import (
    Capabilities,
    adopt_old_async_attributes,
    adopt_old_attributes,
    find_node_lookup,
    find_notifier,
    find_ordered,
    read_capabilities,
)
from retrysafe.stores.batching.aio import AsyncBatching
from retrysafe.stores.batching.sync import Batching
from retrysafe.stores.lifetime import ForkSafeStore, PerLoopStore
from retrysafe.stores.memory import CAPABILITIES, AsyncMemoryStore, MemoryStore
from retrysafe.stores.tiered import AsyncTiered, MemoryCache, Tiered
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper
from retrysafe.testing.builders import claim
from retrysafe.testing.faults import AsyncFaultStore


class PlainStore:
    """The two verbs, and nothing that is optional."""

    capabilities = Capabilities(name="plain", durable=False, shared=False, transactions=False, clock="host")

    def __init__(self) -> None:
        self._inner = MemoryStore()

    def execute(self, op: Op[Any]) -> Any:
        return self._inner.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._inner.execute_many(ops)

    def migrate(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class AsyncPlainStore:
    """The async twin of PlainStore."""

    capabilities = PlainStore.capabilities

    def __init__(self) -> None:
        self._inner = MemoryStore()

    async def execute(self, op: Op[Any]) -> Any:
        return self._inner.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._inner.execute_many(ops)

    async def migrate(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


def test_the_two_verbs_are_enough() -> None:
    safe = RetrySafe(Batching(PlainStore()), async_store=AsyncBatching(AsyncPlainStore()))
    calls = []

    @safe.once("order:{number}")
    def order(number: int) -> int:
        calls.append(number)
        return number

    assert [order(7), order(7)] == [7, 7]
    assert calls == [7]

    @safe.once("later:{number}")
    async def later(number: int) -> int:
        calls.append(number)
        return number

    async def use() -> list[int]:
        found = [await later(8), await later(8)]
        await safe.aclose()
        return found

    assert asyncio.run(use()) == [8, 8]
    assert calls == [7, 8]


class OldStore(PlainStore):
    """Declares by attributes, as stores of release 0.1 did."""

    mixes = True
    flights = 3
    batches_itself = True
    caches = True


class OldAsyncStore(AsyncPlainStore):
    caches = True
    in_order = True


def test_attributes_of_the_release_before_count_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"OldStore\.\w+ is now called Capabilities\.\w+") as told:
        declared = read_capabilities(OldStore())
    assert declared == replace(
        PlainStore.capabilities, mixed_batches=True, max_in_flight=3, native_batching=True, caches=True
    )
    assert {str(each.message).partition(";")[0] for each in told} >= {
        "the attribute OldStore.mixes is now called Capabilities.mixed_batches",
        "the attribute OldStore.caches is now called Capabilities.caches",
    }
    with pytest.warns(DeprecationWarning, match=r"is now called Capabilities\.\w+"):
        batched = Batching(OldStore())
    assert batched._queues[Claim]._max_in_flight == 3


def test_a_performer_sees_attributes_of_the_release_before() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now called Capabilities\.\w+"):
        assert adopt_old_attributes(OldStore()).capabilities.caches
    with pytest.warns(DeprecationWarning, match="Capabilities.caches"):
        adopted = adopt_old_async_attributes(OldAsyncStore())
    assert adopted.capabilities.caches
    assert isinstance(adopted, base.InOrder)
    assert adopted.in_order


def test_a_store_of_today_is_taken_as_it_is() -> None:
    store, later = MemoryStore(), AsyncMemoryStore()
    assert adopt_old_attributes(store) is store
    assert adopt_old_async_attributes(later) is later


def test_a_lazy_store_declares_what_the_open_one_declares() -> None:
    class Piped(AsyncMemoryStore):
        capabilities = replace(CAPABILITIES, native_batching=True)

    lazy = PerLoopStore(CAPABILITIES, Piped)
    assert (lazy.capabilities, lazy.in_order) == (CAPABILITIES, False)
    asyncio.run(_claim(lazy))
    assert (lazy.capabilities, lazy.in_order) == (Piped.capabilities, True)
    sync = ForkSafeStore(PlainStore.capabilities, MemoryStore)
    sync.execute(claim("k", now=0))
    assert sync.capabilities is CAPABILITIES


async def _claim(store: PerLoopStore) -> ClaimReply:
    return await store.execute(claim("k", now=0))


def test_wrappers_declare_what_is_inside_and_what_they_add() -> None:
    assert StoreWrapper(MemoryStore()).capabilities is CAPABILITIES
    assert AsyncStoreWrapper(AsyncMemoryStore()).capabilities is CAPABILITIES
    assert Tiered(MemoryStore(), MemoryCache()).capabilities == replace(CAPABILITIES, caches=True)
    assert AsyncTiered(AsyncMemoryStore(), MemoryCache()).capabilities == replace(CAPABILITIES, caches=True)


def test_the_order_is_kept_only_by_who_says_so() -> None:
    """A wrapper of a third party passes the capabilities on, and may still reorder: it has to say that it does not."""

    class Delegating(AsyncPlainStore):
        @property
        def capabilities(self) -> Capabilities:  # type: ignore[override]  # a property here
            return AsyncMemoryStore.capabilities

    assert find_ordered(Delegating()) is None
    assert AsyncStoreWrapper(AsyncMemoryStore()).in_order
    assert not AsyncStoreWrapper(Delegating()).in_order
    assert not AsyncFaultStore(AsyncMemoryStore()).in_order


def test_a_store_that_says_it_wakes_must_be_able_to() -> None:
    class Silent(PlainStore):
        capabilities = replace(PlainStore.capabilities, wakes=True)

    with pytest.raises(UsageError, match=r"Silent declares Capabilities\.wakes, but has no announce"):
        find_notifier(Silent())
    assert find_notifier(PlainStore()) is None


def test_a_store_without_nodes_is_one_node_without_a_name() -> None:
    class Two(PlainStore):
        def node(self, record_id: bytes) -> str:
            return "b" if record_id > b"m" else "a"

    assert find_node_lookup(PlainStore())(b"x") == ""
    assert find_node_lookup(Two())(b"x") == "b"
    assert StoreWrapper(Two()).node(b"c") == "a"
    assert ForkSafeStore(Two.capabilities, Two).node(b"c") == "a"


def test_native_batching_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native(PlainStore):
        capabilities = replace(PlainStore.capabilities, native_batching=True)

    assert type(registry._wrap_batching(Native())) is Native
    assert type(registry._wrap_batching(PlainStore())) is Batching


def test_built_in_stores_with_tables_name_them() -> None:
    for scheme, backend in registry.backends().items():
        named = isinstance(backend, base.NamesTables)
        assert named == (backend.capabilities.transactions and scheme != "dynamodb"), scheme


def test_the_old_place_of_the_duckdb_store_warns() -> None:
    from retrysafe.stores import duckdb
    from retrysafe.stores.duckdb import sync

    with pytest.warns(DeprecationWarning, match=r"is now called retrysafe\.stores\.duckdb\.DuckdbStore"):
        assert sync.DuckdbStore is duckdb.DuckdbStore
    with pytest.raises(AttributeError, match="Nothing"):
        sync.Nothing  # noqa: B018
