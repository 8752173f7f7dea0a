"""Fault injection: store wrappers that fail where a script says.

Each call passes three points: *before* it is sent, *applied* with its reply lost, and *after* the reply arrived.
`Fault(3, "applied")` makes the third call fail there, once. With `lasting=True` every later call fails too, as if the
store were down. The point decides the error: StoreUnavailable before the call is sent, StoreUnclear once it was
applied. After the reply the store cannot fail any more: there the calling process dies (`Crashed`). With `crash=True`
it dies at the other points too.

The fourth point, *delayed*, is a network that delays a message. `Fault(3, "delayed", later=2)` does not apply the third
call when it is sent: its caller gets StoreUnclear and two more calls pass. When the next call ends, the delayed message
arrives and is applied, and its reply is dropped. With `later=0` it arrives when the very next call ends: right after
the caller's resend, if the caller resends at once. `arrive()` delivers all delayed messages now.

To test every crash point of a flow, run it once on a FaultStore without faults, read `calls`, and run it again for each
call and point.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import AsyncStore, Store
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper

R = TypeVar("R")

Point = Literal["before", "applied", "after", "delayed"]
POINTS: tuple[Point, ...] = ("before", "applied", "after")
"""The points at which one call can fail alone. A delayed call needs later calls, so it is not among them."""


class Crashed(BaseException):
    """The process died here. It is no Exception, so that no `except Exception` cleans up after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Make call number `call` (from 1) fail at `point`. With `only`, just calls with such an operation are counted.
    `later`: how many calls pass before a delayed message arrives after the next one."""

    call: int
    point: Point
    lasting: bool = False
    crash: bool = False
    only: type[Op[Any]] | None = None
    later: int = 0

    def __post_init__(self) -> None:
        if self.later and self.point != "delayed":
            raise ValueError(
                f"Fault({self.call}, {self.point!r}, later={self.later}): later= needs the point 'delayed'"
            )


@dataclass(slots=True)
class _DelayedMessage:
    """A message that was sent and has not arrived."""

    ops: Sequence[Op[Any]]
    later: int


class Script:
    """The faults to inject, and the calls so far. Several stores and threads may share one script."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = list(faults)
        self.calls = 0
        self.seen: list[type[Any]] = []
        self._matching: dict[int, int] = {}
        self._down = False
        self._dead = False
        self._delayed: list[_DelayedMessage] = []
        self._lock = threading.Lock()

    def count_call(self, ops: Sequence[Op[Any]]) -> Fault | None:
        """Count this call, and return the fault that it meets."""
        with self._lock:
            self.calls += 1
            self.seen.extend(type(op) for op in ops)
            if self._dead:
                raise Crashed("the process died in an earlier call")
            if self._down:
                raise StoreUnavailable("the store is down (injected by an earlier fault); call repair() to end it")
            hit = None
            for number, fault in enumerate(self.faults):
                if fault.only is None or any(isinstance(op, fault.only) for op in ops):
                    self._matching[number] = self._matching.get(number, 0) + 1
                    if self._matching[number] == fault.call:
                        hit = hit or fault
            if hit is not None:
                self._down, self._dead = hit.lasting, hit.lasting and self.is_fatal(hit)
            return hit

    def delay(self, ops: Sequence[Op[Any]], later: int) -> None:
        """Keep a message until `later` more calls have passed."""
        with self._lock:
            self._delayed.append(_DelayedMessage(ops, later))

    def pop_due(self) -> list[Sequence[Op[Any]]]:
        """Count one call that passes, and return the messages that arrive after it."""
        with self._lock:
            due = [message for message in self._delayed if message.later == 0]
            self._delayed = [message for message in self._delayed if message.later > 0]
            for message in self._delayed:
                message.later -= 1
            return [message.ops for message in due]

    def pop_all_delayed(self) -> list[Sequence[Op[Any]]]:
        """Return all delayed messages, and forget them."""
        with self._lock:
            delayed, self._delayed = self._delayed, []
            return [message.ops for message in delayed]

    def repair(self) -> None:
        """Bring the store and the process back. Faults that were already injected do not occur again."""
        with self._lock:
            self._down = self._dead = False

    @staticmethod
    def is_fatal(fault: Fault) -> bool:
        return fault.crash or fault.point == "after"

    def raise_at(self, fault: Fault | None, point: Point) -> None:
        """Raise if the fault is at this point."""
        if fault is None or fault.point != point:
            return
        if self.is_fatal(fault):
            raise Crashed(f"call {fault.call} at the point {point!r}")
        if point == "before":
            raise StoreUnavailable(f"call {fault.call} was not sent (injected)")
        if point == "delayed":
            raise StoreUnclear(f"call {fault.call} was sent and has not arrived yet (injected)")
        raise StoreUnclear(f"call {fault.call} was applied and its reply was lost (injected)")


class _ScriptedFaults:
    """The part that the sync and the async store share: the script, and the points that every call passes."""

    script: Script

    @property
    def calls(self) -> int:
        return self.script.calls

    @contextmanager
    def _inject_fault(self, ops: Sequence[Op[Any]], late: list[Sequence[Op[Any]]]) -> Iterator[None]:
        """Run one call through its points. `late` gets the messages that arrive after this call, also if the call
        fails."""
        fault = self.script.count_call(ops)
        late += self.script.pop_due()
        self.script.raise_at(fault, "before")
        if fault is not None and fault.point == "delayed":
            self.script.delay(ops, fault.later)
            self.script.raise_at(fault, "delayed")
        yield
        self.script.raise_at(fault, "applied")
        self.script.raise_at(fault, "after")


class FaultStore(_ScriptedFaults, StoreWrapper):
    """A sync store that fails as its script says."""

    def __init__(self, store: Store, script: Script | Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self.inner = store
        self.script = script if isinstance(script, Script) else Script(script)

    def execute(self, op: Op[R]) -> R:
        late: list[Sequence[Op[Any]]] = []
        try:
            with self._inject_fault([op], late):
                return self.inner.execute(op)
        finally:
            self._deliver(late)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        late: list[Sequence[Op[Any]]] = []
        try:
            with self._inject_fault(ops, late):
                return self.inner.execute_many(ops)
        finally:
            self._deliver(late)

    def arrive(self) -> None:
        """Deliver all delayed messages now."""
        self._deliver(self.script.pop_all_delayed())

    def _deliver(self, late: Iterable[Sequence[Op[Any]]]) -> None:
        for ops in late:
            with suppress(StoreError):  # no caller waits for the reply
                self.inner.execute_many(ops)


class AsyncFaultStore(_ScriptedFaults, AsyncStoreWrapper):
    """An async store that fails as its script says."""

    in_order = False  # a fault may hold back what was sent first

    def __init__(self, store: AsyncStore, script: Script | Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self.inner = store
        self.script = script if isinstance(script, Script) else Script(script)

    async def execute(self, op: Op[R]) -> R:
        late: list[Sequence[Op[Any]]] = []
        try:
            with self._inject_fault([op], late):
                return await self.inner.execute(op)
        finally:
            await self._deliver(late)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        late: list[Sequence[Op[Any]]] = []
        try:
            with self._inject_fault(ops, late):
                return await self.inner.execute_many(ops)
        finally:
            await self._deliver(late)

    async def arrive(self) -> None:
        """Deliver all delayed messages now."""
        await self._deliver(self.script.pop_all_delayed())

    async def _deliver(self, late: Iterable[Sequence[Op[Any]]]) -> None:
        for ops in late:
            with suppress(StoreError):
                await self.inner.execute_many(ops)
