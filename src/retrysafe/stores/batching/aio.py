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
    MAX_BATCH_OPS,
    MAX_IN_FLIGHT_BATCHES,
    MAX_QUEUED_OPS,
    MIN_BATCH_OPS,
    QUEUE_TIMEOUT_SECONDS,
    SEND_UNBATCHED,
    SLOW_BATCH_SECONDS,
    Result,
    batch_stopped_error,
    build_queues,
    compute_batch_limit,
    deliver_all,
    fail_all,
    queue_full_error,
    queue_timeout_error,
    split_in_half,
    take_batch,
)
from retrysafe.stores.wrappers import AsyncStoreWrapper

R = TypeVar("R")


class AsyncPending:
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

    def deliver(self, result: Result) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class InFlightBatch:
    """What is under way together, and since when."""

    __slots__ = ("sent", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.sent: list[AsyncPending] = []


class AsyncBatchQueue:
    """One queue on one event loop. While there is anything in it, a pump takes batches out of it. A second one helps
    (`flights`) when there is enough for both, so that the store works while we pack and unpack; or when the first is
    slow to return, because somebody holds a key it asks for."""

    def __init__(self, store: AsyncStore, batch: int, queue: int, max_in_flight: int = 1) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._max_in_flight = max_in_flight
        self._in_flight: list[InFlightBatch] = []
        self._pumps: dict[asyncio.Task[None], InFlightBatch] = {}
        self._queue: deque[AsyncPending] = deque()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whoever comes now has to wait."""
        return bool(self._in_flight)

    async def execute(self, op: Op[R]) -> R:
        if self._in_flight:
            reply: Any = await self._enqueue(op)
            return await self._store.execute(op) if reply is SEND_UNBATCHED else reply
        flight = InFlightBatch(asyncio.get_running_loop().time())
        self._in_flight.append(flight)
        try:
            return await self._store.execute(op)
        finally:
            self._on_batch_done(flight)

    def _enqueue(self, op: Op[Any]) -> asyncio.Future[Any]:
        if len(self._queue) >= self._limit:
            raise queue_full_error(len(self._queue))
        loop = asyncio.get_running_loop()
        now = loop.time()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append(AsyncPending(op, future, now))
        if self._watch is None:
            self._watch = loop.call_later(
                SLOW_BATCH_SECONDS if self._max_in_flight > 1 else QUEUE_TIMEOUT_SECONDS, self._check_overdue, loop
            )
        if self._should_start_batch(now):
            self._start_pump(loop)
        return future

    def _should_start_batch(self, now: float) -> bool:
        """Whether another takes off. Beside others only with a batch that is worth the trip, or if all are slow."""
        if not self._queue or not self._in_flight:
            return bool(self._queue)
        if self._max_in_flight == 1 or len(self._in_flight) >= MAX_IN_FLIGHT_BATCHES:
            return False
        quick = sum(now - flight.since < SLOW_BATCH_SECONDS for flight in self._in_flight)
        return quick == 0 or (quick < self._max_in_flight and len(self._queue) >= MIN_BATCH_OPS)

    def _on_batch_done(self, flight: InFlightBatch) -> None:
        """Pump what has gathered, or rest."""
        self._in_flight.remove(flight)
        if self._queue and self._should_start_batch(asyncio.get_running_loop().time()):
            self._start_pump(asyncio.get_running_loop())
        elif self._watch is not None and not self._in_flight:
            self._watch.cancel()
            self._watch = None

    def _start_pump(self, loop: asyncio.AbstractEventLoop) -> None:
        flight = InFlightBatch(loop.time())
        pump = loop.create_task(self._pump(loop, flight))
        self._in_flight.append(flight)
        self._pumps[pump] = flight
        pump.add_done_callback(self._on_pump_done)

    async def _pump(self, loop: asyncio.AbstractEventLoop, flight: InFlightBatch) -> None:
        going = bool(self._queue)
        while going:
            flight.since = loop.time()
            flying = sum(len(other.sent) for other in self._in_flight)
            limit = compute_batch_limit(len(self._queue), flying, self._max_in_flight, self._batch)
            flight.sent = take_batch(self._queue, limit, flight.since)
            await self._send(flight.sent)
            flight.sent = []
            # Who was told just now may come back at once with its next operation: it need not miss this flight.
            await asyncio.sleep(0)
            self._in_flight.remove(flight)
            going = self._should_start_batch(loop.time())
            self._in_flight.append(flight)

    def _on_pump_done(self, task: asyncio.Task[None]) -> None:
        """A callback and not a `finally`: a task that is cancelled before its first step never runs its body."""
        flight = self._pumps.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:  # a broken pump must not leave anybody waiting for ever
            fail_all([*flight.sent, *self._queue], batch_stopped_error("pump", error))
            self._queue.clear()
            if not task.cancelled():
                context = {"message": "retrysafe: the pump of a batch stopped", "exception": error, "task": task}
                task.get_loop().call_exception_handler(context)
        self._on_batch_done(flight)  # somebody may have joined between the end of the pump and this call

    def _check_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        """The store may hang in what is in flight; nobody waits behind it for longer than PATIENCE, nor longer than
        SLOW if there may be another flight."""
        self._watch = None
        now = loop.time()
        if self._should_start_batch(now):
            self._start_pump(loop)
        while self._queue and (self._queue[0].left or now - self._queue[0].since >= QUEUE_TIMEOUT_SECONDS):
            self._queue.popleft().deliver(queue_timeout_error())
        if self._queue:
            again = (
                now + SLOW_BATCH_SECONDS if self._max_in_flight > 1 else self._queue[0].since + QUEUE_TIMEOUT_SECONDS
            )
            self._watch = loop.call_at(again, self._check_overdue, loop)

    async def _send(self, batch: list[AsyncPending]) -> None:
        if len(batch) < 2:
            return await self._send_unbatched(batch)
        try:
            deliver_all(batch, await self._execute_many_with_resend([waiting.op for waiting in batch]))
        except StoreOutage as error:
            fail_all(batch, error)
        except BatchRefused:
            deliver_all(batch, [SEND_UNBATCHED] * len(batch))
        except StoreError:  # somebody in it is refused: find out who
            for half in split_in_half(batch):
                await self._send_half(half)
        return None

    async def _send_half(self, half: list[AsyncPending]) -> None:
        if len(half) == 1:
            half[0].deliver(SEND_UNBATCHED)
        else:
            await self._send(half)

    async def _send_unbatched(self, batch: list[AsyncPending]) -> None:
        for waiting in batch:
            try:
                waiting.deliver(await self._store.execute(waiting.op))
            except StoreError as error:
                waiting.deliver(error)

    async def _execute_many_with_resend(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            return await self._store.execute_many(ops)
        except StoreUnclear:
            return await self._store.execute_many(ops)


class AsyncBatching(AsyncStoreWrapper):
    """An async store whose waiting calls go together."""

    def __init__(self, store: AsyncStore, *, batch: int = MAX_BATCH_OPS, queue: int = MAX_QUEUED_OPS) -> None:
        super().__init__(store)
        self._queues: dict[type[Any], AsyncBatchQueue] = build_queues(
            store, lambda flights: AsyncBatchQueue(store, batch, queue, flights)
        )
        self._try_read_claim: Callable[[Claim], ClaimReply | None] | None = getattr(store, "try_read_claim", None)

    def execute(self, op: Op[R]) -> Coroutine[Any, Any, R]:
        lane = self._queues.get(type(op))
        if lane is None:
            return self._store.execute(op)
        # Only where it would have to wait: whoever goes at once looks for itself.
        if self._try_read_claim is not None and lane.busy and isinstance(op, Claim):
            return self._read_or_enqueue(op, self._try_read_claim, lane)
        return lane.execute(op)

    async def _read_or_enqueue(
        self, op: Claim, glance: Callable[[Claim], ClaimReply | None], lane: AsyncBatchQueue
    ) -> Any:
        return glance(op) or await lane.execute(op)
