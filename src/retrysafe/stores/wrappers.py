"""A store around another store. Every call goes through; a subclass changes what it needs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import (
    AsyncStore,
    Capabilities,
    Store,
    find_async_notifier,
    find_node_lookup,
    find_notifier,
    find_ordered,
)

R = TypeVar("R")


class StoreWrapper:
    """A sync store around another. It implements `Notifying` and `HasNodes` as far as the inner store does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._notifier = find_notifier(store)
        self._node_lookup = find_node_lookup(store)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def execute(self, op: Op[R]) -> R:
        return self._store.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._store.execute_many(ops)

    def migrate(self) -> list[str]:
        return self._store.migrate()

    def announce(self, record_id: bytes) -> None:
        if self._notifier is not None:
            self._notifier.announce(record_id)

    def wait(self, record_id: bytes, seconds: float) -> None:
        if self._notifier is not None:
            self._notifier.wait(record_id, seconds)

    def node(self, record_id: bytes) -> str:
        return self._node_lookup(record_id)

    def close(self) -> None:
        self._store.close()


class AsyncStoreWrapper:
    """The async twin of `StoreWrapper`."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._notifier = find_async_notifier(store)
        self._ordered = find_ordered(store)
        self._node_lookup = find_node_lookup(store)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def in_order(self) -> bool:
        return self._ordered is not None and self._ordered.in_order

    async def execute(self, op: Op[R]) -> R:
        return await self._store.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._store.migrate()

    async def announce(self, record_id: bytes) -> None:
        if self._notifier is not None:
            await self._notifier.announce(record_id)

    async def wait(self, record_id: bytes, seconds: float) -> None:
        if self._notifier is not None:
            await self._notifier.wait(record_id, seconds)

    def node(self, record_id: bytes) -> str:
        return self._node_lookup(record_id)

    async def aclose(self) -> None:
        await self._store.aclose()


# Stores of release 0.1 ----------------------------------------------------------------------------


class DeclaredStore(StoreWrapper):
    """A store whose capabilities come partly from attributes of release 0.1 (`base.adopt_old_attributes`)."""

    def __init__(self, store: Store, capabilities: Capabilities) -> None:
        super().__init__(store)
        self._declared = capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self._declared


class AsyncDeclaredStore(AsyncStoreWrapper):
    """The async twin of `DeclaredStore`."""

    def __init__(self, store: AsyncStore, capabilities: Capabilities) -> None:
        super().__init__(store)
        self._declared = capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self._declared
