"""A store around another store: everything goes through, and a subclass says what it does differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import AsyncStore, Capabilities, Store, is_in_order, node_of

R = TypeVar("R")


class StoreWrapper:
    """The sync colour."""

    def __init__(self, store: Store) -> None:
        self._store = store

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
        self._store.announce(record_id)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._store.wait(record_id, seconds)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def node(self, record_id: bytes) -> str:
        return node_of(self._store, record_id)

    def close(self) -> None:
        self._store.close()


class AsyncStoreWrapper:
    """The async colour."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def in_order(self) -> bool:
        return is_in_order(self._store)

    async def execute(self, op: Op[R]) -> R:
        return await self._store.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._store.migrate()

    async def announce(self, record_id: bytes) -> None:
        await self._store.announce(record_id)  # type: ignore[attr-defined]  # only where capabilities.wakes

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._store.wait(record_id, seconds)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def node(self, record_id: bytes) -> str:
        return node_of(self._store, record_id)

    async def aclose(self) -> None:
        await self._store.aclose()
