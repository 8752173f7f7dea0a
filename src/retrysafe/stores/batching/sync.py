"""Batching among threads: the first who waits leads the others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused, Capabilities, Store
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


class Follower:
    """A thread that waits: for its reply, or to be made the leader."""

    __slots__ = ("leads", "left", "op", "result", "signal", "since", "told")

    def __init__(self, op: Op[Any]) -> None:
        self.op = op
        self.since = time.monotonic()
        self.signal = threading.Lock()
        self.signal.acquire()
        self.leads = self.left = self.told = False
        self.result: Result = None

    def tell(self, result: Result) -> None:
        if not self.told:  # a crash tells everybody once more
            self.told = True
            self.result = result
            self.signal.release()


class Lane:
    """One kind of operation among threads: whoever finds the lane idle goes, the next one leads the others.

    A thread may be interrupted anywhere (Ctrl-C, a time limit by signal), so whoever has the lane gives it on in a
    `finally` that begins before it is taken.
    """

    def __init__(self, store: Store, batch: int, queue: int) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._lock = threading.Lock()
        self._queue: deque[Follower] = deque()
        self.busy = False

    def execute(self, op: Op[R]) -> R:
        mine = False
        follower: Follower | None = None
        try:
            with self._lock:
                if self.busy:
                    follower = self._join(op)
                else:
                    self.busy = mine = True
            if follower is None:
                return self._store.execute(op)
            reply: R = self._follow(follower)
            return reply
        finally:
            if mine:
                self._hand_over()
            elif follower is not None:
                self._leave(follower)

    def _join(self, op: Op[Any]) -> Follower:
        if len(self._queue) >= self._limit:
            raise too_long(len(self._queue))
        follower = Follower(op)
        self._queue.append(follower)
        return follower

    def _follow(self, follower: Follower) -> Any:
        if not follower.signal.acquire(timeout=PATIENCE) and self._gave_up(follower):
            raise tired()
        if follower.leads:
            self._lead()
        if follower.result is ALONE:
            self._leave(follower)  # the lane first: the others need not wait for this one
            return self._store.execute(follower.op)
        if isinstance(follower.result, BaseException):
            raise follower.result
        return follower.result

    def _gave_up(self, follower: Follower) -> bool:
        """Waited long enough. Not if its operation is on its way: the store has a deadline of its own for that."""
        with self._lock:
            if follower in self._queue and not follower.leads:
                self._queue.remove(follower)
                return True
        follower.signal.acquire()
        return False

    def _leave(self, follower: Follower) -> None:
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
        """The lane is free: the first who waits leads, or nobody does."""
        with self._lock:
            if not self._queue:
                self.busy = False
                return
            first = self._queue[0]
            first.leads = True
        first.signal.release()

    def _lead(self) -> None:
        """Send the next batch, the leader's own operation first in it."""
        with self._lock:
            batch = take_batch(self._queue, self._batch, time.monotonic())
        try:
            self._send(batch)
        except BaseException as error:
            fail(batch, stopped("leader", error))
            raise

    def _send(self, batch: list[Follower]) -> None:
        if len(batch) < 2:
            return self._plain(batch)
        try:
            tell_all(batch, self._twice([waiting.op for waiting in batch]))
        except StoreUnavailable as error:
            fail(batch, error)
        except BatchRefused:
            tell_all(batch, [ALONE] * len(batch))
        except StoreError:  # somebody in it is refused: find out who
            for half in halves(batch):
                self._split(half)
        return None

    def _split(self, half: list[Follower]) -> None:
        if len(half) == 1:
            half[0].tell(ALONE)
        else:
            self._send(half)

    def _plain(self, batch: list[Follower]) -> None:
        for waiting in batch:
            try:
                waiting.tell(self._store.execute(waiting.op))
            except StoreError as error:
                waiting.tell(error)

    def _twice(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            return self._store.execute_many(ops)
        except StoreUnclear:
            return self._store.execute_many(ops)


class Batching:
    """A sync store whose waiting calls go together."""

    def __init__(self, store: Store, *, batch: int = BATCH, queue: int = QUEUE) -> None:
        self._store = store
        self._lanes: dict[type[Any], Lane] = {kind: Lane(store, batch, queue) for kind in LANES}
        self._glance: Callable[[Claim], ClaimReply | None] | None = getattr(store, "glance", None)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def execute(self, op: Op[R]) -> R:
        lane = self._lanes.get(type(op))
        if lane is None:
            return self._store.execute(op)
        # Only where it would have to wait: whoever goes at once looks for itself.
        if lane.busy and self._glance is not None and isinstance(op, Claim):
            seen: Any = self._glance(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return lane.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._store.execute_many(ops)

    def migrate(self) -> list[str]:
        return self._store.migrate()

    def announce(self, record_id: bytes) -> None:
        self._store.announce(record_id)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._store.wait(record_id, seconds)  # type: ignore[attr-defined]  # only where capabilities.wakes

    def close(self) -> None:
        self._store.close()
