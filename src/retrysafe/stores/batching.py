"""Natural batching: calls that have to wait anyway are sent together.

When nothing is in flight an operation goes at once, by the plain path. Whatever arrives meanwhile waits, and goes as
one `execute_many`: one statement, one commit, one round trip for all of them. Nobody waits for a timer, and nobody
is told "yours" before the commit.

A lane per kind of operation, so that a batch is of one kind. One operation of a key per batch. When a batch fails
unclearly it is sent again as a whole: each operation recognises its own earlier success. When it is refused it is
split, so that one bad operation fails alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import AsyncStore, Capabilities, Store

R = TypeVar("R")

LANES = (Claim, Complete, Renew, Release)
BATCH = 128
QUEUE = 10_000
PATIENCE = 30.0
"""Seconds an operation may wait for its turn; then the store is as good as away."""

Result = Any | BaseException


class Waiting:
    """An operation in a queue, and where its reply goes."""

    __slots__ = ("follower", "op", "since", "tell")

    def __init__(self, op: Op[Any], tell: Callable[[Result], None], since: float) -> None:
        self.op = op
        self.tell = tell
        self.since = since
        self.follower: Follower | None = None


def take_batch(queue: deque[Waiting], limit: int, now: float) -> list[Waiting]:
    """The next batch: at most `limit`, one operation of a key, in their order. Who waited too long is told so."""
    batch: list[Waiting] = []
    seen: set[bytes] = set()
    again: list[Waiting] = []
    while queue and len(batch) < limit:
        waiting = queue.popleft()
        record_id: bytes = waiting.op.id  # type: ignore[attr-defined]  # every kind that has a lane has an id
        if now - waiting.since > PATIENCE:
            waiting.tell(
                StoreUnavailable(f"it waited {PATIENCE:.0f} s for the store; the store is too slow for the load")
            )
        elif record_id in seen:
            again.append(waiting)
        else:
            seen.add(record_id)
            batch.append(waiting)
    queue.extendleft(reversed(again))
    return batch


def halves(batch: list[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def tell_all(batch: Iterable[Waiting], results: Iterable[Result]) -> None:
    for waiting, result in zip(batch, results, strict=True):
        waiting.tell(result)


def too_long(size: int) -> StoreUnavailable:
    return StoreUnavailable(f"{size} operations wait for the store already; it is too slow for the load, try again")


# Async ----------------------------------------------------------------------------------------------------------------


class AsyncLane:
    """One kind of operation on one event loop. A pump runs while there is anything to pump."""

    def __init__(self, store: AsyncStore, batch: int, queue: int) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._queue: deque[Waiting] = deque()
        self._busy = False
        self._pump_task: asyncio.Task[None] | None = None

    async def execute(self, op: Op[R]) -> R:
        if self._busy:
            return await self._wait(op)
        self._busy = True
        try:
            return await self._store.execute(op)
        finally:
            self._next()

    def _next(self) -> None:
        """Nothing is in flight any more: pump what has gathered, or rest."""
        if self._queue:
            self._pump_task = asyncio.get_running_loop().create_task(self._pump())
        else:
            self._busy = False

    def _wait(self, op: Op[R]) -> Awaitable[R]:
        if len(self._queue) >= self._limit:
            raise too_long(len(self._queue))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def tell(result: Result) -> None:
            if future.done():  # its caller was cancelled; the others are not disturbed
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._queue.append(Waiting(op, tell, loop.time()))
        return future

    async def _pump(self) -> None:
        batch: list[Waiting] = []
        try:
            while self._queue:
                batch = take_batch(self._queue, self._batch, asyncio.get_running_loop().time())
                await self._send(batch)
        except BaseException as error:
            # A broken pump must not leave anybody waiting for ever.
            self._fail([*batch, *self._queue], error)
            self._queue.clear()
            raise
        finally:
            self._busy = False

    @staticmethod
    def _fail(waiting: Iterable[Waiting], error: BaseException) -> None:
        for each in waiting:
            each.tell(StoreUnclear(f"the pump of a batch stopped: {type(error).__name__}: {error}"))

    async def _send(self, batch: list[Waiting]) -> None:
        if not batch:
            return None
        if len(batch) == 1:
            return batch[0].tell(await self._one(batch[0].op))
        ops = [waiting.op for waiting in batch]
        try:
            tell_all(batch, await self._twice(ops))
        except StoreUnavailable as error:
            tell_all(batch, [error] * len(batch))
        except StoreError:  # somebody in it is refused: find out who
            for half in halves(batch):
                await self._send(half)
        return None

    async def _one(self, op: Op[Any]) -> Result:
        try:
            return await self._store.execute(op)
        except StoreError as error:
            return error

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
        if self._glance is not None and isinstance(op, Claim):
            seen: Any = self._glance(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return await lane.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._store.migrate()

    async def aclose(self) -> None:
        await self._store.aclose()


# Sync -----------------------------------------------------------------------------------------------------------------


class Follower:
    """A thread that waits: for its reply, or to be made the leader."""

    __slots__ = ("leads", "result", "signal", "waiting")

    def __init__(self, op: Op[Any]) -> None:
        self.signal = threading.Lock()
        self.signal.acquire()
        self.leads = False
        self.result: Result = None
        self.waiting = Waiting(op, self._told, time.monotonic())
        self.waiting.follower = self

    def _told(self, result: Result) -> None:
        self.result = result
        self.signal.release()


class Lane:
    """One kind of operation among threads: whoever finds the lane idle goes, the next one leads the others."""

    def __init__(self, store: Store, batch: int, queue: int) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._lock = threading.Lock()
        self._queue: deque[Waiting] = deque()
        self._busy = False

    def execute(self, op: Op[R]) -> R:
        with self._lock:
            follower = self._join(op) if self._busy else None
            self._busy = True
        if follower is not None:
            reply: R = self._follow(follower)
            return reply
        try:
            return self._store.execute(op)
        finally:
            self._hand_over()

    def _join(self, op: Op[Any]) -> Follower:
        if len(self._queue) >= self._limit:
            raise too_long(len(self._queue))
        follower = Follower(op)
        self._queue.append(follower.waiting)
        return follower

    def _follow(self, follower: Follower) -> Any:
        follower.signal.acquire()
        if follower.leads:
            self._lead(follower)
        if isinstance(follower.result, BaseException):
            raise follower.result
        return follower.result

    def _hand_over(self) -> None:
        """The lane is free: the first who waits leads, or nobody does."""
        with self._lock:
            if not self._queue:
                self._busy = False
                return
            first = self._queue[0].follower
            assert first is not None, "whoever waits among threads is a follower"
            first.leads = True
        first.signal.release()

    def _lead(self, leader: Follower) -> None:
        """Send the next batch, the leader's own operation first in it."""
        with self._lock:
            batch = take_batch(self._queue, self._batch, time.monotonic())
        try:
            self._send(batch)
        except BaseException as error:
            for waiting in batch:
                if waiting is not leader.waiting:
                    waiting.tell(StoreUnclear(f"the leader of a batch stopped: {type(error).__name__}: {error}"))
            raise
        finally:
            self._hand_over()

    def _send(self, batch: list[Waiting]) -> None:
        if not batch:
            return None
        if len(batch) == 1:
            return batch[0].tell(self._one(batch[0].op))
        ops = [waiting.op for waiting in batch]
        try:
            tell_all(batch, self._twice(ops))
        except StoreUnavailable as error:
            tell_all(batch, [error] * len(batch))
        except StoreError:  # somebody in it is refused: find out who
            for half in halves(batch):
                self._send(half)
        return None

    def _one(self, op: Op[Any]) -> Result:
        try:
            return self._store.execute(op)
        except StoreError as error:
            return error

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
        if self._glance is not None and isinstance(op, Claim):
            seen: Any = self._glance(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return lane.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._store.execute_many(ops)

    def migrate(self) -> list[str]:
        return self._store.migrate()

    def close(self) -> None:
        self._store.close()
