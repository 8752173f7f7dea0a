"""Batching among threads: the first who waits leads the others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import StoreError, StoreOutage, StoreUnclear
from retrysafe.stores.base import BatchRefused, Store
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
from retrysafe.stores.wrappers import StoreWrapper

R = TypeVar("R")

YIELD_SECONDS = 1e-6
"""Seconds. Any sleep at all gives the interpreter away; whoever asks for it again stands behind those who wait."""


class SyncPending:
    """A thread that waits: for its reply, or to be made the leader."""

    __slots__ = ("leads", "left", "op", "result", "signal", "since", "told")

    def __init__(self, op: Op[Any]) -> None:
        self.op = op
        self.since = time.monotonic()
        self.signal = threading.Lock()
        self.signal.acquire()
        self.leads = self.left = self.told = False
        self.result: Result = None

    def deliver(self, result: Result) -> None:
        if not self.told:  # a crash tells everybody once more
            self.told = True
            self.result = result
            self.signal.release()


class BatchQueue:
    """One queue among threads: whoever finds the lane idle goes, the next one leads the others. Where there may be
    several `flights`, a second one leaves when there is enough for it, so that the store works while we pack and
    unpack; and the first who has waited for long does not wait for one that is slow to return (it asks for a key that
    somebody holds): it leads beside it.

    A thread may be interrupted anywhere (Ctrl-C, a time limit by signal), so whoever has the lane gives it on in a
    `finally` that begins before it is taken.
    """

    def __init__(self, store: Store, batch: int, queue: int, max_in_flight: int = 1) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._max_in_flight = max_in_flight
        self._lock = threading.Lock()
        self._queue: deque[SyncPending] = deque()
        self._in_flight = self._in_flight_ops = 0
        """Flights under way, and operations in them."""

    @property
    def busy(self) -> bool:
        """Whoever comes now has to wait."""
        return self._in_flight > 0

    def execute(self, op: Op[R]) -> R:
        mine = False
        follower: SyncPending | None = None
        try:
            with self._lock:
                if self._in_flight:
                    follower = SyncPending(op)
                    self._enqueue(follower)
                else:
                    self._in_flight, mine = 1, True
            if follower is None:
                return self._store.execute(op)
            reply: R = self._wait_or_lead(follower)
            return reply
        finally:
            if mine:
                self._hand_over()
            elif follower is not None:
                self._leave(follower)

    def _enqueue(self, follower: SyncPending) -> None:
        if len(self._queue) >= self._limit:
            raise queue_full_error(len(self._queue))
        self._queue.append(follower)
        if self._in_flight < self._max_in_flight and len(self._queue) >= MIN_BATCH_OPS:
            # Who makes it enough for another flight leads it: it is awake.
            self._queue.rotate()
            self._in_flight += 1
            follower.leads = True

    def _wait_or_lead(self, follower: SyncPending) -> Any:
        if not follower.leads and not self._wait_for_turn(follower):
            raise queue_timeout_error()
        if follower.leads:
            self._lead(follower)
        if follower.result is SEND_UNBATCHED:
            self._leave(follower)  # the lane first: the others need not wait for this one
            return self._store.execute(follower.op)
        if isinstance(follower.result, BaseException):
            raise follower.result
        return follower.result

    def _start_extra_batch(self, follower: SyncPending) -> bool:
        """What is in flight is slow: the first who waits leads beside it, if there may be another."""
        with self._lock:
            room = self._max_in_flight > 1 and self._in_flight < MAX_IN_FLIGHT_BATCHES
            if not room or follower.leads or not self._queue or self._queue[0] is not follower:
                return False
            self._in_flight += 1
            follower.leads = True
            return True

    def _wait_for_turn(self, follower: SyncPending) -> bool:
        """Looked at again and again: who is not the first now may be it when those before have gone in a flight that is
        slow as well."""
        if self._max_in_flight == 1:
            return follower.signal.acquire(timeout=QUEUE_TIMEOUT_SECONDS) or not self._give_up(follower)
        deadline = follower.since + QUEUE_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if follower.signal.acquire(timeout=SLOW_BATCH_SECONDS) or self._start_extra_batch(follower):
                return True
        return not self._give_up(follower)

    def _give_up(self, follower: SyncPending) -> bool:
        """Waited long enough. Not if its operation is on its way: the store has a deadline of its own for that."""
        with self._lock:
            if follower in self._queue and not follower.leads:
                self._queue.remove(follower)
                return True
        follower.signal.acquire()
        return False

    def _leave(self, follower: SyncPending) -> None:
        """Its caller goes, with a reply or without; a leader gives the lane on."""
        if follower.told and not follower.leads:
            return
        with self._lock:
            leads, follower.leads, follower.left = follower.leads, False, True
            if not follower.told and follower in self._queue:
                self._queue.remove(follower)
        if leads:
            self._hand_over()

    def _hand_over(self) -> None:
        """A flight is over: the first who waits leads the next, or nobody does."""
        with self._lock:
            first = next((waiting for waiting in self._queue if not waiting.leads), None)
            if first is None or not self._should_start_batch(first):
                self._in_flight -= 1
                return
            first.leads = True
        first.signal.release()

    def _should_start_batch(self, first: SyncPending) -> bool:
        """Whether another flight takes the place of the one that is over. Beside others only with a batch that is worth
        the trip, or if it has waited for long: with few in it, one flight for everybody is better than two."""
        enough = self._in_flight <= self._max_in_flight and len(self._queue) >= MIN_BATCH_OPS
        return self._in_flight == 1 or enough or time.monotonic() - first.since >= SLOW_BATCH_SECONDS

    def _lead(self, leader: SyncPending) -> None:
        """Send the next batch, the leader's own operation first in it. Who leads another flight is not in it."""
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
            # Those who were told just now wait for the interpreter, which this thread has. Who comes back at once with
            # its next operation need not miss the next batch: stand back until they have had their turn.
            time.sleep(YIELD_SECONDS)

    def _send(self, batch: list[SyncPending]) -> None:
        if len(batch) < 2:
            return self._send_unbatched(batch)
        try:
            deliver_all(batch, self._execute_many_with_resend([waiting.op for waiting in batch]))
        except StoreOutage as error:
            fail_all(batch, error)
        except BatchRefused:
            deliver_all(batch, [SEND_UNBATCHED] * len(batch))
        except StoreError:  # somebody in it is refused: find out who
            for half in split_in_half(batch):
                self._send_half(half)
        return None

    def _send_half(self, half: list[SyncPending]) -> None:
        if len(half) == 1:
            half[0].deliver(SEND_UNBATCHED)
        else:
            self._send(half)

    def _send_unbatched(self, batch: list[SyncPending]) -> None:
        for waiting in batch:
            try:
                waiting.deliver(self._store.execute(waiting.op))
            except StoreError as error:
                waiting.deliver(error)

    def _execute_many_with_resend(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            return self._store.execute_many(ops)
        except StoreUnclear:
            return self._store.execute_many(ops)


class Batching(StoreWrapper):
    """A sync store whose waiting calls go together."""

    def __init__(self, store: Store, *, batch: int = MAX_BATCH_OPS, queue: int = MAX_QUEUED_OPS) -> None:
        super().__init__(store)
        self._queues: dict[type[Any], BatchQueue] = build_queues(
            store, lambda flights: BatchQueue(store, batch, queue, flights)
        )
        self._try_read_claim: Callable[[Claim], ClaimReply | None] | None = getattr(store, "try_read_claim", None)

    def execute(self, op: Op[R]) -> R:
        lane = self._queues.get(type(op))
        if lane is None:
            return self._store.execute(op)
        # Only where it would have to wait: whoever goes at once looks for itself.
        if lane.busy and self._try_read_claim is not None and isinstance(op, Claim):
            seen: Any = self._try_read_claim(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return lane.execute(op)
