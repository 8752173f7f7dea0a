"""Batching among threads. There is no thread of its own: the first waiting thread sends the batch, as its leader."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from retrysafe.core.ops import Claim, Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnclear
from retrysafe.stores.base import BatchRefused, FastRead, Store, provides, read_capabilities
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
from retrysafe.stores.wrappers import StoreWrapper

R = TypeVar("R")

YIELD_SECONDS = 1e-6
"""A minimal sleep. It releases the GIL, so that waiting threads run before this thread continues."""


class SyncPending:
    """An operation whose thread waits: for the reply, or to become the leader of the next batch."""

    __slots__ = ("delivered", "followers", "leads", "left", "op", "result", "signal", "since")

    def __init__(self, op: Op[Any]) -> None:
        self.op = op
        self.since = time.monotonic()
        self.signal = threading.Lock()
        self.signal.acquire()
        self.followers = NOBODY
        self.leads = self.left = self.delivered = False
        self.result: Result = None

    def deliver(self, result: Result) -> None:
        if result is not SEND_UNBATCHED:
            self.tell_followers(result)
        if not self.delivered:  # after a crash, an error is delivered to the whole batch
            self.delivered = True
            self.result = result
            self.signal.release()
        if self.left:  # its thread will not send the operation: each follower sends its own
            self.tell_followers(result)

    def tell_followers(self, result: Result) -> None:
        """Two threads may call this at once. `pop` gives each follower to one of them."""
        while self.followers:
            try:
                follower = self.followers.pop()
            except IndexError:
                return
            deliver_to_followers([follower], result)


class BatchQueue:
    """One queue among threads. A thread that finds no batch in flight sends its operation at once. Later threads wait,
    and the first of them leads the next batch.

    If `max_in_flight` is above 1, a second batch is sent when there are enough operations for it: the store then works
    while this process packs and unpacks. A thread that has waited for long does not wait for a slow batch (another
    transaction has locked one of its keys): it leads a batch beside it.

    A thread may be interrupted anywhere (Ctrl-C, a time limit by signal). So each thread that counts as in flight hands
    over in a `finally` block that begins before the thread is counted.
    """

    def __init__(
        self, store: Store, batch: int, queue: int, max_in_flight: int = 1, on_batch: OnBatch = ignore_batch
    ) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._max_in_flight = max_in_flight
        self._on_batch = on_batch
        self._lock = threading.Lock()
        self._queue: deque[SyncPending] = deque()
        self._in_flight = self._in_flight_ops = 0
        """How many batches are in flight, and how many operations are in them."""

    @property
    def busy(self) -> bool:
        """An operation that arrives now has to wait."""
        return self._in_flight > 0

    def execute(self, op: Op[R]) -> R:
        counted = False
        pending: SyncPending | None = None
        try:
            with self._lock:
                if self._in_flight:
                    pending = SyncPending(op)
                    self._enqueue(pending)
                else:
                    self._in_flight, counted = 1, True
            if pending is None:
                return self._store.execute(op)
            reply: R = self._wait_or_lead(pending)
            return reply
        finally:
            if counted:
                self._hand_over()
            elif pending is not None:
                self._leave(pending)
                if pending.delivered and pending.followers:  # the thread was interrupted before its reply came
                    pending.tell_followers(StoreUnclear("the thread that asked for all of them was interrupted"))

    def _enqueue(self, pending: SyncPending) -> None:
        if len(self._queue) >= self._limit:
            raise queue_full_error(len(self._queue))
        self._queue.append(pending)
        if self._in_flight < self._max_in_flight and len(self._queue) >= MIN_BATCH_OPS:
            # This thread completed a full batch. It sends that batch itself, because it is already running.
            self._queue.rotate()
            self._in_flight += 1
            pending.leads = True

    def _wait_or_lead(self, pending: SyncPending) -> Any:
        if not pending.leads and not self._wait_for_turn(pending):
            raise queue_timeout_error()
        if pending.leads:
            self._lead(pending)
        if pending.result is SEND_UNBATCHED:
            self._leave(pending)  # hand over first: the others need not wait for this operation
            return self._send_alone(pending)
        if isinstance(pending.result, BaseException):
            raise pending.result
        return pending.result

    def _send_alone(self, pending: SyncPending) -> Any:
        """Send one operation outside the queue. Its followers wait for the reply."""
        try:
            reply = self._store.execute(pending.op)
        except StoreError as error:
            pending.tell_followers(error)
            raise
        pending.tell_followers(reply)
        return reply

    def _start_extra_batch(self, pending: SyncPending) -> bool:
        """The batches in flight are slow. The first waiting thread leads one more, if another is allowed."""
        with self._lock:
            allowed = self._max_in_flight > 1 and self._in_flight < MAX_IN_FLIGHT_BATCHES
            if not allowed or pending.leads or not self._queue or self._queue[0] is not pending:
                return False
            self._in_flight += 1
            pending.leads = True
            return True

    def _wait_for_turn(self, pending: SyncPending) -> bool:
        """Wait for the reply or for the lead. The wait is cut into short waits: a thread that is not the first now may
        be the first later, when the threads before it are in a batch that is slow as well."""
        if self._max_in_flight == 1:
            return pending.signal.acquire(timeout=QUEUE_TIMEOUT_SECONDS) or not self._give_up(pending)
        deadline = pending.since + QUEUE_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if pending.signal.acquire(timeout=SLOW_BATCH_SECONDS) or self._start_extra_batch(pending):
                return True
        return not self._give_up(pending)

    def _give_up(self, pending: SyncPending) -> bool:
        """Leave the queue after the timeout. False if the operation is in flight: the store has a deadline for that."""
        with self._lock:
            if pending in self._queue and not pending.leads:
                self._queue.remove(pending)
                return True
        pending.signal.acquire()
        return False

    def _leave(self, pending: SyncPending) -> None:
        """The caller leaves, with or without a reply. A leader hands over."""
        if pending.delivered and not pending.leads:
            return
        with self._lock:
            leads, pending.leads, pending.left = pending.leads, False, True
            if not pending.delivered and pending in self._queue:
                self._queue.remove(pending)
        if leads:
            self._hand_over()

    def _hand_over(self) -> None:
        """A batch is done. The first waiting thread leads the next one, if it should be sent now."""
        with self._lock:
            first = next((waiting for waiting in self._queue if not waiting.leads), None)
            if first is None or not self._should_start_batch(first):
                self._in_flight -= 1
                return
            first.leads = True
        first.signal.release()

    def _should_start_batch(self, first: SyncPending) -> bool:
        """Whether another batch follows the one that is done. Beside other batches, only if it is large enough or has
        waited for long: one batch for few operations is better than two."""
        enough = self._in_flight <= self._max_in_flight and len(self._queue) >= MIN_BATCH_OPS
        return self._in_flight == 1 or enough or time.monotonic() - first.since >= SLOW_BATCH_SECONDS

    def _lead(self, leader: SyncPending) -> None:
        """Send the next batch. The leader's own operation comes first; leaders of other batches stay in the queue."""
        batch: list[SyncPending] = []
        try:
            with self._lock:
                others = [waiting for waiting in self._queue if waiting.leads and waiting is not leader]
                for waiting in others:
                    self._queue.remove(waiting)
                limit = compute_batch_limit(len(self._queue), self._in_flight_ops, self._max_in_flight, self._batch)
                batch = take_batch(self._queue, limit, time.monotonic())
                self._in_flight_ops += len(batch)
                self._queue.extendleft(reversed(others))
            self._send(batch)
        except BaseException as error:
            fail_all(batch, batch_stopped_error("leader", error))
            raise
        finally:
            with self._lock:
                self._in_flight_ops -= len(batch)
        if len(batch) > 1 and not self._queue:
            # The threads that have just got their replies wait for the GIL, which this thread holds. Let them run, so
            # that their next operations can join the next batch.
            time.sleep(YIELD_SECONDS)

    def _send(self, batch: list[SyncPending]) -> None:
        self._on_batch(batch)
        if len(batch) < 2 and self._in_flight > 1:
            # It may wait for a locked row for long, and must not count as a batch in flight meanwhile.
            return deliver_all(batch, [SEND_UNBATCHED] * len(batch))
        if len(batch) < 2:
            return self._send_unbatched(batch)
        try:
            deliver_all(batch, self._execute_many_with_resend([pending.op for pending in batch]))
        except StoreOutage as error:
            fail_all(batch, error)
        except BatchRefused as refused:
            deliver_all(batch, refused.replies or [SEND_UNBATCHED] * len(batch))
        except StoreError:  # one of the operations is refused: find it by halving
            for half in split_in_half(batch):
                self._send_half(half)
        return None

    def _send_half(self, half: list[SyncPending]) -> None:
        if len(half) == 1:
            half[0].deliver(SEND_UNBATCHED)
        else:
            self._send(half)

    def _send_unbatched(self, batch: list[SyncPending]) -> None:
        for pending in batch:
            try:
                pending.deliver(self._store.execute(pending.op))
            except StoreError as error:
                pending.deliver(error)

    def _execute_many_with_resend(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            return self._store.execute_many(ops)
        except StoreUnclear:
            return self._store.execute_many(ops)


class Batching(StoreWrapper):
    """A sync store that batches concurrent calls."""

    def __init__(
        self,
        store: Store,
        *,
        batch: int = MAX_BATCH_OPS,
        queue: int = MAX_QUEUED_OPS,
        on_batch: OnBatch = ignore_batch,
    ) -> None:
        super().__init__(store)
        self._queues: dict[type[Any], BatchQueue] = build_queues(
            read_capabilities(store), lambda max_in_flight: BatchQueue(store, batch, queue, max_in_flight, on_batch)
        )
        self._try_read_claim = cast("FastRead", store).try_read_claim if provides(store, FastRead) else None

    def execute(self, op: Op[R]) -> R:
        queue = self._queues.get(type(op))
        if queue is None:
            return self._store.execute(op)
        # Try the lock-free read only when a batch is in flight. Otherwise the store's execute() does the same read.
        if queue.busy and self._try_read_claim is not None and isinstance(op, Claim):
            seen: Any = self._try_read_claim(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return queue.execute(op)
