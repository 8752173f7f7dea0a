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
from retrysafe.stores.wrappers import Around

R = TypeVar("R")

BREATH = 1e-6
"""Seconds. Any sleep at all gives the interpreter away; whoever asks for it again stands behind those who wait."""


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
    """One queue among threads: whoever finds the lane idle goes, the next one leads the others. Where there may be
    several `flights`, a second one leaves when there is enough for it, so that the store works while we pack and
    unpack; and the first who has waited for long does not wait for one that is slow to return (it asks for a key that
    somebody holds): it leads beside it.

    A thread may be interrupted anywhere (Ctrl-C, a time limit by signal), so whoever has the lane gives it on in a
    `finally` that begins before it is taken.
    """

    def __init__(self, store: Store, batch: int, queue: int, flights: int = 1) -> None:
        self._store = store
        self._batch = batch
        self._limit = queue
        self._flights = flights
        self._lock = threading.Lock()
        self._queue: deque[Follower] = deque()
        self._aloft = self._flying = 0
        """Flights under way, and operations in them."""

    @property
    def busy(self) -> bool:
        """Whoever comes now has to wait."""
        return self._aloft > 0

    def execute(self, op: Op[R]) -> R:
        mine = False
        follower: Follower | None = None
        try:
            with self._lock:
                if self._aloft:
                    follower = Follower(op)
                    self._join(follower)
                else:
                    self._aloft, mine = 1, True
            if follower is None:
                return self._store.execute(op)
            reply: R = self._follow(follower)
            return reply
        finally:
            if mine:
                self._hand_over()
            elif follower is not None:
                self._leave(follower)

    def _join(self, follower: Follower) -> None:
        if len(self._queue) >= self._limit:
            raise too_long(len(self._queue))
        self._queue.append(follower)
        if self._aloft < self._flights and len(self._queue) >= PLENTY:
            # Who makes it enough for another flight leads it: it is awake.
            self._queue.rotate()
            self._aloft += 1
            follower.leads = True

    def _follow(self, follower: Follower) -> Any:
        if not follower.leads and not self._woken(follower):
            raise tired()
        if follower.leads:
            self._lead(follower)
        if follower.result is ALONE:
            self._leave(follower)  # the lane first: the others need not wait for this one
            return self._store.execute(follower.op)
        if isinstance(follower.result, BaseException):
            raise follower.result
        return follower.result

    def _takes_off(self, follower: Follower) -> bool:
        """What is in flight is slow: the first who waits leads beside it, if there may be another."""
        with self._lock:
            room = self._flights > 1 and self._aloft < AT_MOST
            if not room or follower.leads or not self._queue or self._queue[0] is not follower:
                return False
            self._aloft += 1
            follower.leads = True
            return True

    def _woken(self, follower: Follower) -> bool:
        """Looked at again and again: who is not the first now may be it when those before have gone in a flight that is
        slow as well."""
        if self._flights == 1:
            return follower.signal.acquire(timeout=PATIENCE) or not self._gave_up(follower)
        deadline = follower.since + PATIENCE
        while time.monotonic() < deadline:
            if follower.signal.acquire(timeout=SLOW) or self._takes_off(follower):
                return True
        return not self._gave_up(follower)

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
        """A flight is over: the first who waits leads the next, or nobody does."""
        with self._lock:
            first = next((waiting for waiting in self._queue if not waiting.leads), None)
            if first is None or not self._worth_it(first):
                self._aloft -= 1
                return
            first.leads = True
        first.signal.release()

    def _worth_it(self, first: Follower) -> bool:
        """Whether another flight takes the place of the one that is over. Beside others only with a batch that is worth
        the trip, or if it has waited for long: with few in it, one flight for everybody is better than two."""
        enough = self._aloft <= self._flights and len(self._queue) >= PLENTY
        return self._aloft == 1 or enough or time.monotonic() - first.since >= SLOW

    def _lead(self, leader: Follower) -> None:
        """Send the next batch, the leader's own operation first in it. Who leads another flight is not in it."""
        batch: list[Follower] = []
        try:
            with self._lock:
                others = [waiting for waiting in self._queue if waiting.leads and waiting is not leader]
                for waiting in others:
                    self._queue.remove(waiting)
                limit = share(len(self._queue), self._flying, self._flights, self._batch)
                batch = take_batch(self._queue, limit, time.monotonic())
                self._flying += len(batch)
                self._queue.extendleft(reversed(others))
            self._send(batch)
        except BaseException as error:
            fail(batch, stopped("leader", error))
            raise
        finally:
            with self._lock:
                self._flying -= len(batch)
        if len(batch) > 1 and not self._queue:
            # Those who were told just now wait for the interpreter, which this thread has. Who comes back at once with
            # its next operation need not miss the next batch: stand back until they have had their turn.
            time.sleep(BREATH)

    def _send(self, batch: list[Follower]) -> None:
        if len(batch) < 2:
            return self._plain(batch)
        try:
            tell_all(batch, self._twice([waiting.op for waiting in batch]))
        except StoreOutage as error:
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


class Batching(Around):
    """A sync store whose waiting calls go together."""

    def __init__(self, store: Store, *, batch: int = BATCH, queue: int = QUEUE) -> None:
        super().__init__(store)
        self._lanes: dict[type[Any], Lane] = lanes(store, lambda flights: Lane(store, batch, queue, flights))
        self._glance: Callable[[Claim], ClaimReply | None] | None = getattr(store, "glance", None)

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
