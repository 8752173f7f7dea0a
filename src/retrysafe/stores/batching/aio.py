"""Batching on an event loop. A task, the pump, sends the operations that have gathered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnclear
from retrysafe.stores.base import AsyncStore, BatchRefused, FastRead, find_submit, provides, read_capabilities
from retrysafe.stores.batching.queue import (
    MAX_BATCH_OPS,
    MAX_IN_FLIGHT_BATCHES,
    MAX_QUEUED_OPS,
    MIN_BATCH_OPS,
    NOBODY,
    QUEUE_TIMEOUT_SECONDS,
    SEND_UNBATCHED,
    SLOW_BATCH_SECONDS,
    OnBatch,
    Result,
    batch_stopped_error,
    build_queues,
    compute_batch_limit,
    deliver_all,
    deliver_to_followers,
    fail_all,
    ignore_batch,
    queue_full_error,
    queue_timeout_error,
    split_in_half,
    take_batch,
)
from retrysafe.stores.wrappers import AsyncStoreWrapper

R = TypeVar("R")


class AsyncPending:
    """An operation whose caller awaits the reply."""

    __slots__ = ("followers", "future", "op", "send_alone", "sends_itself", "since")

    def __init__(
        self,
        op: Op[Any],
        future: asyncio.Future[Any],
        since: float,
        send_alone: Callable[[AsyncPending], None],
        sends_itself: bool,
    ) -> None:
        self.op = op
        self.future = future
        self.since = since
        self.followers = NOBODY
        self.send_alone = send_alone
        """Sends the operation in a task. For SEND_UNBATCHED, if the caller cannot, or if others wait for its reply."""
        self.sends_itself = sends_itself

    @property
    def left(self) -> bool:
        """The caller was cancelled. An operation that was not sent yet is dropped."""
        return self.future.done()

    def deliver(self, result: Result) -> None:
        if result is SEND_UNBATCHED and not self.left and (self.followers or not self.sends_itself):
            return self.send_alone(self)  # its reply is delivered to all of them
        if self.followers is not NOBODY:
            followers, self.followers = self.followers, NOBODY
            deliver_to_followers(followers, result)
        if self.future.done():
            return None
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)
        return None


class InFlightBatch:
    """A batch on its way to the store."""

    __slots__ = ("sent", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.sent: list[AsyncPending] = []


class AsyncBatchQueue:
    """One queue on one event loop. While it holds operations, a pump sends them in batches.

    If `max_in_flight` is above 1, a second pump helps when there are enough operations for both: the store then works
    while this process packs and unpacks. A second pump also starts when the first batch is slow, because another
    transaction has locked one of its keys.
    """

    def __init__(
        self, store: AsyncStore, batch: int, queue: int, max_in_flight: int = 1, on_batch: OnBatch = ignore_batch
    ) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._max_in_flight = max_in_flight
        self._on_batch = on_batch
        self._submit = find_submit(store)
        self._in_flight: list[InFlightBatch] = []
        self._pumps: dict[asyncio.Task[None], InFlightBatch] = {}
        self._queue: deque[AsyncPending] = deque()
        self._alone: set[asyncio.Task[None]] = set()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """An operation that arrives now has to wait."""
        return bool(self._in_flight)

    async def execute(self, op: Op[R]) -> R:
        if self._in_flight:
            reply: Any = await self._enqueue(op, sends_itself=True)
            return await self._store.execute(op) if reply is SEND_UNBATCHED else reply
        batch = InFlightBatch(asyncio.get_running_loop().time())
        self._in_flight.append(batch)
        try:
            return await self._store.execute(op)
        finally:
            self._on_batch_done(batch)

    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None:
        """Let the operation join the next batch. If nothing is in flight, the store sends it at once; None if the store
        cannot: then the caller executes it."""
        if self._in_flight:
            return self._enqueue(op, sends_itself=False)
        submitted = None if self._submit is None else self._submit(op)
        if submitted is not None and not submitted.done():
            batch = InFlightBatch(asyncio.get_running_loop().time())
            self._in_flight.append(batch)
            submitted.add_done_callback(lambda _: self._on_batch_done(batch))
        return submitted

    def _send_alone(self, pending: AsyncPending) -> None:
        """Send one operation outside the queue, in a task."""
        task = asyncio.get_running_loop().create_task(self._send_unbatched([pending]))
        self._alone.add(task)  # asyncio keeps only a weak reference
        task.add_done_callback(partial(self._on_alone_done, pending))

    def _on_alone_done(self, pending: AsyncPending, task: asyncio.Task[None]) -> None:
        self._alone.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            pending.deliver(batch_stopped_error("task", error))

    def _enqueue(self, op: Op[Any], *, sends_itself: bool) -> asyncio.Future[Any]:
        if len(self._queue) >= self._limit:
            raise queue_full_error(len(self._queue))
        loop = asyncio.get_running_loop()
        now = loop.time()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append(AsyncPending(op, future, now, self._send_alone, sends_itself))
        if self._watch is None:
            self._watch = loop.call_later(
                SLOW_BATCH_SECONDS if self._max_in_flight > 1 else QUEUE_TIMEOUT_SECONDS, self._check_overdue, loop
            )
        if self._should_start_batch(now):
            self._start_pump(loop)
        return future

    def _should_start_batch(self, now: float) -> bool:
        """Whether to send another batch now. Beside other batches only a batch of a good size is sent; or
        any batch, if all batches in flight are slow."""
        if not self._queue or not self._in_flight:
            return bool(self._queue)
        if self._max_in_flight == 1 or len(self._in_flight) >= MAX_IN_FLIGHT_BATCHES:
            return False
        if len(self._queue) < MIN_BATCH_OPS and now - self._in_flight[-1].since < SLOW_BATCH_SECONDS:
            return False  # few operations, and not all batches are slow: what most operations find
        quick = sum(now - batch.since < SLOW_BATCH_SECONDS for batch in self._in_flight)
        return quick == 0 or (quick < self._max_in_flight and len(self._queue) >= MIN_BATCH_OPS)

    def _on_batch_done(self, batch: InFlightBatch) -> None:
        """Send what has gathered meanwhile, or stop the timer."""
        self._in_flight.remove(batch)
        if self._queue and self._should_start_batch(asyncio.get_running_loop().time()):
            self._start_pump(asyncio.get_running_loop())
        elif self._watch is not None and not self._in_flight:
            self._watch.cancel()
            self._watch = None

    def _start_pump(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = InFlightBatch(loop.time())
        pump = loop.create_task(self._pump(loop, batch))
        self._in_flight.append(batch)
        self._pumps[pump] = batch
        pump.add_done_callback(self._on_pump_done)

    async def _pump(self, loop: asyncio.AbstractEventLoop, batch: InFlightBatch) -> None:
        has_more = bool(self._queue)
        while has_more:
            batch.since = loop.time()
            in_flight_ops = sum(len(other.sent) for other in self._in_flight)
            limit = compute_batch_limit(len(self._queue), in_flight_ops, self._max_in_flight, self._batch)
            batch.sent = take_batch(self._queue, limit, batch.since)
            await self._send(batch.sent)
            batch.sent = []
            # A caller that has just got its reply may send its next operation at once. Let it join the next batch.
            await asyncio.sleep(0)
            self._in_flight.remove(batch)
            has_more = self._should_start_batch(loop.time())
            self._in_flight.append(batch)

    def _on_pump_done(self, task: asyncio.Task[None]) -> None:
        """A callback and not a `finally`: a task that is cancelled before its first step never runs its body."""
        batch = self._pumps.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:  # callers of a broken pump must not wait for ever
            fail_all([*batch.sent, *self._queue], batch_stopped_error("pump", error))
            self._queue.clear()
            if not task.cancelled():
                context = {"message": "retrysafe: the pump of a batch stopped", "exception": error, "task": task}
                task.get_loop().call_exception_handler(context)
        self._on_batch_done(batch)  # operations may have joined between the end of the pump and this call

    def _check_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the timer. The store may hang in a batch in flight. An operation behind it waits for at most
        QUEUE_TIMEOUT_SECONDS, and only for SLOW_BATCH_SECONDS if another batch is allowed."""
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
        self._on_batch(batch)
        if len(batch) < 2 and len(self._in_flight) > 1:
            # It may wait for a locked row for long, and must not count as a batch in flight meanwhile.
            return deliver_all(batch, [SEND_UNBATCHED] * len(batch))
        if len(batch) < 2:
            return await self._send_unbatched(batch)
        try:
            deliver_all(batch, await self._execute_many_with_resend([pending.op for pending in batch]))
        except StoreOutage as error:
            fail_all(batch, error)
        except BatchRefused as refused:
            deliver_all(batch, refused.replies or [SEND_UNBATCHED] * len(batch))
        except StoreError:  # one of the operations is refused: find it by halving
            for half in split_in_half(batch):
                await self._send_half(half)
        return None

    async def _send_half(self, half: list[AsyncPending]) -> None:
        if len(half) == 1:
            half[0].deliver(SEND_UNBATCHED)
        else:
            await self._send(half)

    async def _send_unbatched(self, batch: list[AsyncPending]) -> None:
        for pending in batch:
            try:
                pending.deliver(await self._store.execute(pending.op))
            except StoreError as error:
                pending.deliver(error)

    async def _execute_many_with_resend(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            return await self._store.execute_many(ops)
        except StoreUnclear:
            return await self._store.execute_many(ops)


class AsyncBatching(AsyncStoreWrapper):
    """An async store that batches concurrent calls."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        batch: int = MAX_BATCH_OPS,
        queue: int = MAX_QUEUED_OPS,
        on_batch: OnBatch = ignore_batch,
    ) -> None:
        super().__init__(store)
        self._queues: dict[type[Any], AsyncBatchQueue] = build_queues(
            read_capabilities(store),
            lambda max_in_flight: AsyncBatchQueue(store, batch, queue, max_in_flight, on_batch),
        )
        self._try_read_claim = cast("FastRead", store).try_read_claim if provides(store, FastRead) else None

    def execute(self, op: Op[R]) -> Coroutine[Any, Any, R]:
        queue = self._queues.get(type(op))
        if queue is None:
            return self._store.execute(op)
        # Try the lock-free read only when a batch is in flight. Otherwise the store's execute() does the same read.
        if self._try_read_claim is not None and queue.busy and isinstance(op, Claim):
            return self._read_or_enqueue(op, self._try_read_claim, queue)
        return queue.execute(op)

    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None:
        queue = self._queues.get(type(op))
        if queue is None:
            return None
        # As in `execute`: if nothing is in flight, the store reads by itself.
        if self._try_read_claim is not None and queue.busy and isinstance(op, Claim):
            found = self._try_read_claim(op)
            if found is not None:
                done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                done.set_result(found)
                return done
        return queue.submit(op)

    async def _read_or_enqueue(
        self, op: Claim, try_read_claim: Callable[[Claim], ClaimReply | None], queue: AsyncBatchQueue
    ) -> Any:
        return try_read_claim(op) or await queue.execute(op)
