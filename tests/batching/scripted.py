"""A real store that writes down what reached it, waits where the test says, and fails where the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from retrysafe.core.ops import Op
from retrysafe.stores.base import AsyncStore, Capabilities, Store

Trouble = Callable[[Sequence[Op[Any]]], BaseException | None]
"""Looks at the operations of a call and says what to raise, if anything."""

SECONDS = 60.0
"""No test waits this long; one that would is reported instead of hanging the run."""


class Script:
    """What both colours share."""

    def __init__(self, mixed_batches: bool = False, max_in_flight: int = 1) -> None:
        self.mixed_batches = mixed_batches
        self.max_in_flight = max_in_flight
        self.plain: list[Op[Any]] = []
        self.batches: list[list[Op[Any]]] = []
        self.before: Trouble = lambda ops: None
        self.after: Trouble = lambda ops: None

    def strike(self, trouble: Trouble, ops: Sequence[Op[Any]]) -> None:
        error = trouble(ops)
        if error is not None:
            raise error


def times(number: int, error: Callable[[], BaseException]) -> Trouble:
    """The first so many calls fail."""
    left = [number]

    def trouble(ops: Sequence[Op[Any]]) -> BaseException | None:
        left[0] -= 1
        return error() if left[0] >= 0 else None

    return trouble


def containing(record_id: bytes, error: Callable[[], BaseException]) -> Trouble:
    """Every call with this record in it fails."""
    return lambda ops: error() if any(op.id == record_id for op in ops) else None  # type: ignore[attr-defined]


class ScriptedStore(Script):
    """Sync. `hold()` stops calls as they arrive; `entered` tells that one has; `go()` lets all go."""

    def __init__(self, inner: Store) -> None:
        super().__init__()
        self.inner = inner
        self.entered = threading.Event()
        self._gate = threading.Event()
        self._gate.set()

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, mixed_batches=self.mixed_batches, max_in_flight=self.max_in_flight)

    def hold(self) -> None:
        self._gate.clear()

    def go(self) -> None:
        self._gate.set()

    def execute(self, op: Op[Any]) -> Any:
        self.plain.append(op)
        self._pass([op])
        reply = self.inner.execute(op)
        self.strike(self.after, [op])
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        self.batches.append(list(ops))
        self._pass(ops)
        replies = self.inner.execute_many(ops)
        self.strike(self.after, ops)
        return replies

    def _pass(self, ops: Sequence[Op[Any]]) -> None:
        self.entered.set()
        assert self._gate.wait(SECONDS), "the test never let the call go"
        self.strike(self.before, ops)

    def migrate(self) -> list[str]:
        return self.inner.migrate()

    def close(self) -> None:
        self.inner.close()


class AsyncScriptedStore(Script):
    """Its async twin."""

    def __init__(self, inner: AsyncStore) -> None:
        super().__init__()
        self.inner = inner
        self.entered = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, mixed_batches=self.mixed_batches, max_in_flight=self.max_in_flight)

    def hold(self) -> None:
        self._gate.clear()

    def go(self) -> None:
        self._gate.set()

    async def execute(self, op: Op[Any]) -> Any:
        self.plain.append(op)
        await self._pass([op])
        reply = await self.inner.execute(op)
        self.strike(self.after, [op])
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        self.batches.append(list(ops))
        await self._pass(ops)
        replies = await self.inner.execute_many(ops)
        self.strike(self.after, ops)
        return replies

    async def next_arrival(self) -> None:
        """Wait until another call has come."""
        self.entered.clear()
        await asyncio.wait_for(self.entered.wait(), SECONDS)

    async def _pass(self, ops: Sequence[Op[Any]]) -> None:
        self.entered.set()
        await asyncio.wait_for(self._gate.wait(), SECONDS)
        self.strike(self.before, ops)

    async def migrate(self) -> list[str]:
        return await self.inner.migrate()

    async def aclose(self) -> None:
        await self.inner.aclose()
