"""Who holds a connection, and how long: nothing opens before it is used, nothing is carried over a fork,
and each event loop has its own.

A socket inherited through fork is shared with the parent: two processes would read each other's replies.
So a store is remembered together with the process that opened it, and a child quietly opens its own. The
inherited one is kept referenced and never touched, because closing it would speak on the parent's socket.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import AsyncStore, Capabilities, Store, is_in_order, node_of

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")

_inherited: list[object] = []


class ForkSafeStore:
    """A sync store that opens at first use, once per process."""

    def __init__(self, capabilities: Capabilities, open_one: Callable[[], Store]) -> None:
        self.capabilities = capabilities
        self._open = open_one
        self._store: Store | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def execute(self, op: Op[R]) -> R:
        return self._current().execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._current().execute_many(ops)

    def migrate(self) -> list[str]:
        return self._current().migrate()

    def announce(self, record_id: bytes) -> None:
        self._current().announce(record_id)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._current().wait(record_id, seconds)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def node(self, record_id: bytes) -> str:
        return node_of(self._current(), record_id)

    def close(self) -> None:
        store, self._store = self._store, None
        if self._pid != os.getpid():
            _inherited.append(store)
        elif store is not None:
            store.close()

    def _current(self) -> Store:
        store = self._store
        if store is not None and self._pid == os.getpid():
            return store
        return self._reopen()

    def _reopen(self) -> Store:
        if self._pid != os.getpid():
            # A fork may have happened while another thread of the parent held this lock.
            self._lock = threading.Lock()
            _inherited.append(self._store)
            self._store, self._pid = None, os.getpid()
        with self._lock:
            if self._store is None:
                self._store = self._open()
            return self._store


class PerLoopStore:
    """An async store that opens at first use, once per process and event loop."""

    def __init__(self, capabilities: Capabilities, open_one: Callable[[], AsyncStore]) -> None:
        self.capabilities = capabilities
        self._open = open_one
        self._stores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncStore] = weakref.WeakKeyDictionary()
        self._last: tuple[Callable[[], object], Callable[[], object], AsyncStore] | None = None
        """How to ask for the running loop, the one that asked last (weakly), and its store: nearly every process has
        one loop."""
        self._pid = os.getpid()

    async def execute(self, op: Op[R]) -> R:
        return await self._current().execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._current().execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._current().migrate()

    async def announce(self, record_id: bytes) -> None:
        await self._current().announce(record_id)  # type: ignore[attr-defined]  # only where capabilities.wakes

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._current().wait(record_id, seconds)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def node(self, record_id: bytes) -> str:
        return node_of(self._current(), record_id)

    @property
    def in_order(self) -> bool:
        return is_in_order(self._current())

    async def aclose(self) -> None:
        """Close what belongs to the running loop. Another loop's connections can only be closed by that loop."""
        self._last = None
        store = self._stores.pop(_running_loop(), None)
        if self._pid != os.getpid():
            _inherited.append(store)
        elif store is not None:
            await store.aclose()

    def _current(self) -> AsyncStore:
        last = self._last
        if last is not None and last[0]() is last[1]() and self._pid == os.getpid():
            return last[2]
        return self._find(_running_loop())

    def _find(self, loop: asyncio.AbstractEventLoop) -> AsyncStore:
        if self._pid != os.getpid():
            _inherited.append(self._stores)
            self._stores, self._pid = weakref.WeakKeyDictionary(), os.getpid()
        store = self._stores.get(loop)
        if store is None:
            store = self._stores[loop] = self._open()
        self._last = _load_get_running_loop(), weakref.ref(loop), store
        return store


def _running_loop() -> asyncio.AbstractEventLoop:
    return _load_get_running_loop()()


@cache
def _load_get_running_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    from asyncio import get_running_loop  # here, not above: sync programs need not load asyncio

    return get_running_loop
