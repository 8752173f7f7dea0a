"""When a store opens its connections: at first use, once per process, and for async stores once per event loop.

A child process inherits the parent's sockets through fork. If both processes used one socket, each would read the
other's replies. So a store is kept together with the id of the process that opened it, and a child opens a store of its
own. The inherited store stays referenced and is never used: closing it would write to the parent's socket.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import (
    AsyncNotifying,
    AsyncStore,
    Capabilities,
    Notifying,
    Store,
    Submit,
    find_async_notifier,
    find_node_lookup,
    find_notifier,
    find_ordered,
    find_submit,
)

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")
T = TypeVar("T")

_inherited: list[object] = []


class OpenStore(NamedTuple):
    """An open sync store, with its optional protocols resolved."""

    store: Store
    notifier: Notifying | None
    node_lookup: Callable[[bytes], str]


class OpenAsyncStore(NamedTuple):
    """The async twin of `OpenStore`."""

    store: AsyncStore
    notifier: AsyncNotifying | None
    node_lookup: Callable[[bytes], str]
    submit: Submit | None


class ForkSafeStore:
    """A sync store that opens at first use, once per process."""

    def __init__(self, capabilities: Capabilities, open_one: Callable[[], Store]) -> None:
        self.capabilities = capabilities
        """What the backend declares; once a store is open, what that store declares."""
        self._open = open_one
        self._opened: OpenStore | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def execute(self, op: Op[R]) -> R:
        return self._current().store.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._current().store.execute_many(ops)

    def migrate(self) -> list[str]:
        return self._current().store.migrate()

    def announce(self, record_id: bytes) -> None:
        notifier = self._current().notifier
        if notifier is not None:
            notifier.announce(record_id)

    def wait(self, record_id: bytes, seconds: float) -> None:
        notifier = self._current().notifier
        if notifier is None:  # the backend declares `wakes`, the store does not
            time.sleep(seconds)
        else:
            notifier.wait(record_id, seconds)

    def node(self, record_id: bytes) -> str:
        return self._current().node_lookup(record_id)

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if self._pid != os.getpid():
            _inherited.append(opened)
        elif opened is not None:
            opened.store.close()

    def _current(self) -> OpenStore:
        opened = self._opened
        if opened is not None and self._pid == os.getpid():
            return opened
        return self._reopen()

    def _reopen(self) -> OpenStore:
        if self._pid != os.getpid():
            # Another thread of the parent may have held this lock when the process was forked.
            self._lock = threading.Lock()
            _inherited.append(self._opened)
            self._opened, self._pid = None, os.getpid()
        with self._lock:
            if self._opened is None:
                store = self._open()
                self.capabilities = store.capabilities
                self._opened = OpenStore(store, find_notifier(store), find_node_lookup(store))
            return self._opened


class PerLoop(Generic[T]):
    """One value per process and event loop. It is made when a loop first asks for it, and forgotten with the loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()
        self._last: tuple[Callable[[], object], Callable[[], object], T] | None = None
        """`get_running_loop`, a weak reference to the loop that asked last, and its value. Nearly every process has one
        loop, so this avoids most lookups."""
        self._pid = os.getpid()

    def get(self) -> T:
        """The running loop's value."""
        last = self._last
        if last is not None and last[0]() is last[1]() and self._pid == os.getpid():
            return last[2]
        return self._find(_running_loop())

    def get_existing(self) -> T | None:
        """The running loop's value, if it was made in this process."""
        return self._values.get(_running_loop()) if self._pid == os.getpid() else None

    def pop(self) -> T | None:
        """Remove the running loop's value. A value that came through a fork is kept referenced and not returned."""
        self._last = None
        value = self._values.pop(_running_loop(), None)
        if self._pid != os.getpid():
            _inherited.append(value)
            return None
        return value

    def _find(self, loop: asyncio.AbstractEventLoop) -> T:
        if self._pid != os.getpid():
            _inherited.append(self._values)
            self._values, self._pid = weakref.WeakKeyDictionary(), os.getpid()
        if loop not in self._values:
            self._values[loop] = self._make()
        value = self._values[loop]
        self._last = _load_asyncio().get_running_loop, weakref.ref(loop), value
        return value


class PerLoopStore:
    """An async store that opens at first use, once per process and event loop."""

    def __init__(self, capabilities: Capabilities, open_one: Callable[[], AsyncStore]) -> None:
        self.capabilities = capabilities
        """What the backend declares; once a store is open, what that store declares."""
        self.in_order = False
        """False, until a store is open that says otherwise."""
        self._open = open_one
        self._opened = PerLoop(self._open_here)
        self._current = self._opened.get

    async def execute(self, op: Op[R]) -> R:
        return await self._current().store.execute(op)

    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None:
        submit = self._current().submit
        return None if submit is None else submit(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._current().store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._current().store.migrate()

    async def announce(self, record_id: bytes) -> None:
        notifier = self._current().notifier
        if notifier is not None:
            await notifier.announce(record_id)

    async def wait(self, record_id: bytes, seconds: float) -> None:
        notifier = self._current().notifier
        if notifier is None:  # the backend declares `wakes`, the store does not
            await _load_asyncio().sleep(seconds)
        else:
            await notifier.wait(record_id, seconds)

    def node(self, record_id: bytes) -> str:
        return self._current().node_lookup(record_id)

    async def aclose(self) -> None:
        """Close the running loop's store. Only another loop itself can close its connections."""
        opened = self._opened.pop()
        if opened is not None:
            await opened.store.aclose()

    def _open_here(self) -> OpenAsyncStore:
        store = self._open()
        ordered = find_ordered(store)
        self.capabilities, self.in_order = store.capabilities, ordered is not None and ordered.in_order
        return OpenAsyncStore(store, find_async_notifier(store), find_node_lookup(store), find_submit(store))


def _running_loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = _load_asyncio().get_running_loop()
    return loop


@cache
def _load_asyncio() -> ModuleType:
    import asyncio  # imported late: sync programs need not load asyncio

    return asyncio
