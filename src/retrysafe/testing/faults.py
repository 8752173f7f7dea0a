"""A store that fails where the test says, around any real store.

Each call passes three points: *before* it is sent, *applied* with the reply lost on the way back, and *after*
the reply arrived. `Fault(3, "applied")` hits the third call there, once; `lasting=True` makes every later call
fail as well, as a store that went down does. What the caller sees follows from the point: StoreUnavailable
before, StoreUnclear once it was applied. After the acknowledgement nothing can go wrong with the store any more;
there the caller itself dies (`Crashed`), and with `crash=True` it does so at the other points too.

A fourth point is a network that holds a message back: *delayed*. `Fault(3, "delayed", later=2)` does not apply the
third call when it is sent; its caller is told StoreUnclear, two more calls pass, and as the next one after them ends,
the copy arrives and is carried out for nobody. With `later=0` that is as the very next call ends: right after the
caller's own resend, if it sends again at once. `arrive()` lets in at once whatever is still on its way.

To enumerate every crash point of a story: run it once on a FaultStore without faults, read `calls`, and run
it again for each call and point.
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
"""Where one call goes wrong by itself; a delayed one takes others to be late for."""


class Crashed(BaseException):
    """The process died here. Not an Exception, so that nothing tidies up after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail the `call`-th call (from 1) at `point`; with `only`, just calls with such an operation count. `later`: how
    many calls a delayed one lets pass before it comes in behind the next."""

    call: int
    point: Point
    lasting: bool = False
    crash: bool = False
    only: type[Op[Any]] | None = None
    later: int = 0

    def __post_init__(self) -> None:
        if self.later and self.point != "delayed":
            raise ValueError(f"Fault({self.call}, {self.point!r}, later={self.later}): only a delayed call is late")


@dataclass(slots=True)
class _DelayedMessage:
    """A message on its way."""

    ops: Sequence[Op[Any]]
    later: int


class Script:
    """The faults to come, and what happened so far. May be shared by several stores and threads."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = list(faults)
        self.calls = 0
        self.seen: list[type[Any]] = []
        self._matching: dict[int, int] = {}
        self._down = False
        self._dead = False
        self._held: list[_DelayedMessage] = []
        self._lock = threading.Lock()

    def count_call(self, ops: Sequence[Op[Any]]) -> Fault | None:
        """Count this call and say how it fails, if it does."""
        with self._lock:
            self.calls += 1
            self.seen.extend(type(op) for op in ops)
            if self._dead:
                raise Crashed("the process died in an earlier call")
            if self._down:
                raise StoreUnavailable("the store is down (injected by an earlier fault); repair() ends it")
            hit = None
            for number, fault in enumerate(self.faults):
                if fault.only is None or any(isinstance(op, fault.only) for op in ops):
                    self._matching[number] = self._matching.get(number, 0) + 1
                    if self._matching[number] == fault.call:
                        hit = hit or fault
            if hit is not None:
                self._down, self._dead = hit.lasting, hit.lasting and self.is_fatal(hit)
            return hit

    def hold_back(self, ops: Sequence[Op[Any]], later: int) -> None:
        with self._lock:
            self._held.append(_DelayedMessage(ops, later))

    def pop_due(self) -> list[Sequence[Op[Any]]]:
        """Another call passes: what comes in behind it."""
        with self._lock:
            due = [held for held in self._held if held.later == 0]
            self._held = [held for held in self._held if held.later > 0]
            for held in self._held:
                held.later -= 1
            return [held.ops for held in due]

    def pop_all_held(self) -> list[Sequence[Op[Any]]]:
        """All that was held back; it is no longer."""
        with self._lock:
            held, self._held = self._held, []
            return [each.ops for each in held]

    def repair(self) -> None:
        """The store is back, the process was started again; faults already met do not return."""
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
            raise StoreUnclear(f"call {fault.call} was sent and nobody answered: it is still on its way (injected)")
        raise StoreUnclear(f"call {fault.call} was applied and its reply was lost (injected)")


class _ScriptedFaults:
    """What both colours share: the script, and the points every call passes."""

    script: Script

    @property
    def calls(self) -> int:
        return self.script.calls

    @contextmanager
    def _inject_fault(self, ops: Sequence[Op[Any]], late: list[Sequence[Op[Any]]]) -> Iterator[None]:
        """`late` is filled with what comes in behind this call, however it ends."""
        fault = self.script.count_call(ops)
        late += self.script.pop_due()
        self.script.raise_at(fault, "before")
        if fault is not None and fault.point == "delayed":
            self.script.hold_back(ops, fault.later)
            self.script.raise_at(fault, "delayed")
        yield
        self.script.raise_at(fault, "applied")
        self.script.raise_at(fault, "after")


class FaultStore(_ScriptedFaults, StoreWrapper):
    """A sync store that follows a script."""

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
        """Whatever is still on its way arrives now."""
        self._deliver(self.script.pop_all_held())

    def _deliver(self, late: Iterable[Sequence[Op[Any]]]) -> None:
        for ops in late:
            with suppress(StoreError):  # nobody waits for it
                self.inner.execute_many(ops)


class AsyncFaultStore(_ScriptedFaults, AsyncStoreWrapper):
    """Its async twin."""

    in_order = False  # it may hold back what was sent first

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
        await self._deliver(self.script.pop_all_held())

    async def _deliver(self, late: Iterable[Sequence[Op[Any]]]) -> None:
        for ops in late:
            with suppress(StoreError):
                await self.inner.execute_many(ops)
