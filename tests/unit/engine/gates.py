"""Stores that stop where a test wants them to: they wrap a real one, and say when an operation arrives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import Capabilities
from retrysafe.stores.memory import CAPABILITIES, AsyncMemoryStore, MemoryStore

R = TypeVar("R")
PATIENCE = 60.0
"""Seconds until a signal that never comes is a failure."""


class Watched:
    """A memory store, sync and async. `before` is called with each operation; it may raise, or count."""

    capabilities: Capabilities = CAPABILITIES

    def __init__(self, before: Callable[[Op[Any]], None] = lambda op: None) -> None:
        self.inner = MemoryStore()
        self.before = before
        self.seen: list[Op[Any]] = []
        self._changed = threading.Condition()

    def execute(self, op: Op[R]) -> R:
        self.before(op)
        reply = self.inner.execute(op)
        with self._changed:
            self.seen.append(op)
            self._changed.notify_all()
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return [self.execute(op) for op in ops]

    def migrate(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(op, kind) for op in self.seen)

    def wait_for(self, kind: type[Any], times: int) -> None:
        """Until that many operations of this kind were carried out."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self.count(kind) >= times, PATIENCE)
        assert arrived, f"{self.count(kind)} of {times} {kind.__name__} came"


class AsyncWatched:
    """The same store, awaited. `gate` may be set to hold one kind of operation after it was applied."""

    capabilities: Capabilities = CAPABILITIES

    def __init__(self, watched: Watched | None = None) -> None:
        self.watched = watched or Watched()
        self._inner = AsyncMemoryStore(self.watched.inner)
        self.gates: dict[type[Any], Gate] = {}

    async def execute(self, op: Op[R]) -> R:
        self.watched.before(op)
        reply = await self._inner.execute(op)
        self.watched.seen.append(op)
        gate = self.gates.get(type(op))
        if gate is not None:
            await gate.passed()
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return [await self.execute(op) for op in ops]

    async def migrate(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


class Gate:
    """Holds the first that comes until it is opened; `reached` says that somebody stands there."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def passed(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            await self.opened.wait()
