"""Batching on an event loop: a pump sends what has gathered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnclear
from retrysafe.stores.base import AsyncStore, BatchRefused
from retrysafe.stores.batching.queue import (
    ALONE,
    AT_MOST,
    BATCH,
    PATIENCE,
    PLENTY,
    QUEUE,
    SLOW,
    Result,
    fail,
    halves,
    lanes,
    share,
    stopped,
    take_batch,
    tell_all,
    tired,
    too_long,
)
from retrysafe.stores.wrappers import AsyncAround

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


class Flight:
    """What is under way together, and since when."""

    __slots__ = ("sent", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.sent: list[Sleeper] = []


class AsyncLane:
    """One queue on one event loop. While there is anything in it, a pump takes batches out of it. A second one helps
    (`flights`) when there is enough for both, so that the store works while we pack and unpack; or when the first is
    slow to return, because somebody holds a key it asks for."""

    def __init__(self, store: AsyncStore, batch: int, queue: int, flights: int = 1) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._flights = flights
        self._aloft: list[Flight] = []
        self._pumps: dict[asyncio.Task[None], Flight] = {}
        self._queue: deque[Sleeper] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whoever comes now has to wait."""
        return bool(self._aloft)

    async def execute(self, op: Op[R]) -> R:
        if self._aloft:
            reply: Any = await self._join(op)
            return await self._store.execute(op) if reply is ALONE else reply
        flight = Flight(asyncio.get_running_loop().time())
        self._aloft.append(flight)
        try:
            return await self._store.execute(op)
        finally:
            self._landed(flight)

    def _join(self, op: Op[Any]) -> asyncio.Future[Any]:
        if len(self._queue) >= self._limit:
            raise too_long(len(self._queue))
        loop = asyncio.get_running_loop()
        now = loop.time()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append(Sleeper(op, future, now))
        if self._watch is None:
            self._watch = loop.call_later(SLOW if self._flights > 1 else PATIENCE, self._look_after, loop)
        if self._worth_it(now):
            self._start(loop)
        return future

    def _worth_it(self, now: float) -> bool:
        """Whether another takes off. Beside others only with a batch that is worth the trip, or if all are slow."""
        if not self._queue or not self._aloft:
            return bool(self._queue)
        if self._flights == 1 or len(self._aloft) >= AT_MOST:
            return False
        quick = sum(now - flight.since < SLOW for flight in self._aloft)
        return quick == 0 or (quick < self._flights and len(self._queue) >= PLENTY)

    def _landed(self, flight: Flight) -> None:
        """Pump what has gathered, or rest."""
        self._aloft.remove(flight)
        if self._queue and self._worth_it(asyncio.get_running_loop().time()):
            self._start(asyncio.get_running_loop())
        elif self._watch is not None and not self._aloft:
            self._watch.cancel()
            self._watch = None

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        flight = Flight(loop.time())
        pump = loop.create_task(self._pump(loop, flight))
        self._aloft.append(flight)
        self._pumps[pump] = flight
        pump.add_done_callback(self._pumped)

    async def _pump(self, loop: asyncio.AbstractEventLoop, flight: Flight) -> None:
        going = bool(self._queue)
        while going:
            flight.since = loop.time()
            flying = sum(len(other.sent) for other in self._aloft)
            limit = share(len(self._queue), flying, self._flights, self._batch)
            flight.sent = take_batch(self._queue, limit, flight.since)
            await self._send(flight.sent)
            flight.sent = []
            # Who was told just now may come back at once with its next operation: it need not miss this flight.
            await asyncio.sleep(0)
            self._aloft.remove(flight)
            going = self._worth_it(loop.time())
            self._aloft.append(flight)

    def _pumped(self, task: asyncio.Task[None]) -> None:
        """A callback and not a `finally`: a task that is cancelled before its first step never runs its body."""
        flight = self._pumps.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:  # a broken pump must not leave anybody waiting for ever
            fail([*flight.sent, *self._queue], stopped("pump", error))
            self._queue.clear()
            if not task.cancelled():
                context = {"message": "retrysafe: the pump of a batch stopped", "exception": error, "task": task}
                task.get_loop().call_exception_handler(context)
        self._landed(flight)  # somebody may have joined between the end of the pump and this call

    def _look_after(self, loop: asyncio.AbstractEventLoop) -> None:
        """The store may hang in what is in flight; nobody waits behind it for longer than PATIENCE, nor longer than
        SLOW if there may be another flight."""
        self._watch = None
        now = loop.time()
        if self._worth_it(now):
            self._start(loop)
        while self._queue and (self._queue[0].left or now - self._queue[0].since >= PATIENCE):
            self._queue.popleft().tell(tired())
        if self._queue:
            again = now + SLOW if self._flights > 1 else self._queue[0].since + PATIENCE
            self._watch = loop.call_at(again, self._look_after, loop)

    async def _send(self, batch: list[Sleeper]) -> None:
        if len(batch) < 2:
            return await self._plain(batch)
        try:
            tell_all(batch, await self._twice([waiting.op for waiting in batch]))
        except StoreOutage as error:
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


class AsyncBatching(AsyncAround):
    """An async store whose waiting calls go together."""

    def __init__(self, store: AsyncStore, *, batch: int = BATCH, queue: int = QUEUE) -> None:
        super().__init__(store)
        self._lanes: dict[type[Any], AsyncLane] = lanes(store, lambda flights: AsyncLane(store, batch, queue, flights))
        self._glance: Callable[[Claim], ClaimReply | None] | None = getattr(store, "glance", None)

    def execute(self, op: Op[R]) -> Coroutine[Any, Any, R]:
        lane = self._lanes.get(type(op))
        if lane is None:
            return self._store.execute(op)
        # Only where it would have to wait: whoever goes at once looks for itself.
        if self._glance is not None and lane.busy and isinstance(op, Claim):
            return self._glanced(op, self._glance, lane)
        return lane.execute(op)

    async def _glanced(self, op: Claim, glance: Callable[[Claim], ClaimReply | None], lane: AsyncLane) -> Any:
        return glance(op) or await lane.execute(op)
