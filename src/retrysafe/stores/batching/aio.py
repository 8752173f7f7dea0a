"""Batching on an event loop: a pump sends what has gathered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import AsyncStore, BatchRefused, Capabilities
from retrysafe.stores.batching.queue import (
    ALONE,
    BATCH,
    LANES,
    PATIENCE,
    QUEUE,
    Result,
    fail,
    halves,
    stopped,
    take_batch,
    tell_all,
    tired,
    too_long,
)

R = TypeVar("R")


class Sleeper:
    """A coroutine that waits for its reply."""

    __slots__ = ("future", "op", "since")

    def __init__(self, op: Op[Any], future: asyncio.Future[Any], since: float) -> None:
        self.op = op
        self.future = future
        self.since = since

    @property
    def left(self) -> bool:
        """Its caller was cancelled. What was not sent need not be."""
        return self.future.done()

    def tell(self, result: Result) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class AsyncLane:
    """One kind of operation on one event loop. A pump runs while there is anything to pump."""

    def __init__(self, store: AsyncStore, batch: int, queue: int) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._queue: deque[Sleeper] = deque()
        self._sent: list[Sleeper] = []
        self.busy = False
        self._pump_task: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    async def execute(self, op: Op[R]) -> R:
        if self.busy:
            reply: Any = await self._join(op)
            return await self._store.execute(op) if reply is ALONE else reply
        self.busy = True
        try:
            return await self._store.execute(op)
        finally:
            self._next()

    def _join(self, op: Op[Any]) -> asyncio.Future[Any]:
        if len(self._queue) >= self._limit:
            raise too_long(len(self._queue))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append(Sleeper(op, future, loop.time()))
        if self._watch is None:
            self._watch = loop.call_later(PATIENCE, self._look_after, loop)
        return future

    def _next(self) -> None:
        """Nothing is in flight any more: pump what has gathered, or rest."""
        if not self._queue:
            self._rest()
            return
        self._pump_task = asyncio.get_running_loop().create_task(self._pump())
        self._pump_task.add_done_callback(self._pumped)

    def _rest(self) -> None:
        self.busy = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            self._sent = take_batch(self._queue, self._batch, loop.time())
            await self._send(self._sent)

    def _pumped(self, task: asyncio.Task[None]) -> None:
        """A callback and not a `finally`: a task that is cancelled before its first step never runs its body."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:  # a broken pump must not leave anybody waiting for ever
            fail([*self._sent, *self._queue], stopped("pump", error))
            self._queue.clear()
            if not task.cancelled():
                context = {"message": "retrysafe: the pump of a batch stopped", "exception": error, "task": task}
                task.get_loop().call_exception_handler(context)
        self._sent = []
        self._next()  # somebody may have joined between the end of the pump and this call

    def _look_after(self, loop: asyncio.AbstractEventLoop) -> None:
        """The store may hang in what is in flight; nobody waits behind it for longer than PATIENCE."""
        self._watch = None
        now = loop.time()
        while self._queue and (self._queue[0].left or now - self._queue[0].since >= PATIENCE):
            self._queue.popleft().tell(tired())
        if self._queue:
            self._watch = loop.call_at(self._queue[0].since + PATIENCE, self._look_after, loop)

    async def _send(self, batch: list[Sleeper]) -> None:
        if len(batch) < 2:
            return await self._plain(batch)
        try:
            tell_all(batch, await self._twice([waiting.op for waiting in batch]))
        except StoreUnavailable as error:
            fail(batch, error)
        except BatchRefused:
            tell_all(batch, [ALONE] * len(batch))
        except StoreError:  # somebody in it is refused: find out who
            for half in halves(batch):
                await self._split(half)
        return None

    async def _split(self, half: list[Sleeper]) -> None:
        if len(half) == 1:
            half[0].tell(ALONE)
        else:
            await self._send(half)

    async def _plain(self, batch: list[Sleeper]) -> None:
        for waiting in batch:
            try:
                waiting.tell(await self._store.execute(waiting.op))
            except StoreError as error:
                waiting.tell(error)

    async def _twice(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            return await self._store.execute_many(ops)
        except StoreUnclear:
            return await self._store.execute_many(ops)


class AsyncBatching:
    """An async store whose waiting calls go together."""

    def __init__(self, store: AsyncStore, *, batch: int = BATCH, queue: int = QUEUE) -> None:
        self._store = store
        self._lanes: dict[type[Any], AsyncLane] = {kind: AsyncLane(store, batch, queue) for kind in LANES}
        self._glance: Callable[[Claim], ClaimReply | None] | None = getattr(store, "glance", None)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def execute(self, op: Op[R]) -> R:
        lane = self._lanes.get(type(op))
        if lane is None:
            return await self._store.execute(op)
        # Only where it would have to wait: whoever goes at once looks for itself.
        if lane.busy and self._glance is not None and isinstance(op, Claim):
            seen: Any = self._glance(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return await lane.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._store.migrate()

    async def announce(self, record_id: bytes) -> None:
        await self._store.announce(record_id)  # type: ignore[attr-defined]  # only where capabilities.wakes

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._store.wait(record_id, seconds)  # type: ignore[attr-defined]  # only where capabilities.wakes

    async def aclose(self) -> None:
        await self._store.aclose()
