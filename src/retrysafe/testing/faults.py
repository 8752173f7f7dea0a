"""A store that fails where the test says, around any real store.

Each call passes three points: *before* it is sent, *applied* with the reply lost on the way back, and *after*
the reply arrived. `Fault(3, "applied")` hits the third call there, once; `lasting=True` makes every later call
fail as well, as a store that went down does. What the caller sees follows from the point: StoreUnavailable
before, StoreUnclear once it was applied. After the acknowledgement nothing can go wrong with the store any more;
there the caller itself dies (`Crashed`), and with `crash=True` it does so at the other points too.

To enumerate every crash point of a story: run it once on a FaultStore without faults, read `calls`, and run
it again for each call and point.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import AsyncStore, Store
from retrysafe.stores.wrappers import Around, AsyncAround

R = TypeVar("R")

Point = Literal["before", "applied", "after"]
POINTS: tuple[Point, ...] = ("before", "applied", "after")


class Crashed(BaseException):
    """The process died here. Not an Exception, so that nothing tidies up after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail the `call`-th call (from 1) at `point`; with `only`, just calls with such an operation count."""

    call: int
    point: Point
    lasting: bool = False
    crash: bool = False
    only: type[Op[Any]] | None = None


class Script:
    """The faults to come, and what happened so far. May be shared by several stores and threads."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = list(faults)
        self.calls = 0
        self.seen: list[type[Any]] = []
        self._matching: dict[int, int] = {}
        self._down = False
        self._dead = False
        self._lock = threading.Lock()

    def next(self, ops: Sequence[Op[Any]]) -> Fault | None:
        """Count this call and say how it fails, if it does."""
        with self._lock:
            self.calls += 1
            self.seen.extend(type(op) for op in ops)
            if self._dead:
                raise Crashed("the process died in an earlier call")
            if self._down:
                raise StoreUnavailable("the store is down (injected by an earlier fault); repair() ends it")
            for number, fault in enumerate(self.faults):
                if fault.only is None or any(isinstance(op, fault.only) for op in ops):
                    self._matching[number] = self._matching.get(number, 0) + 1
                    if self._matching[number] == fault.call:
                        self._down, self._dead = fault.lasting, fault.lasting and self.kills(fault)
                        return fault
            return None

    def repair(self) -> None:
        """The store is back, the process was started again; faults already met do not return."""
        with self._lock:
            self._down = self._dead = False

    @staticmethod
    def kills(fault: Fault) -> bool:
        return fault.crash or fault.point == "after"

    def strike(self, fault: Fault | None, point: Point) -> None:
        """Raise if the fault is at this point."""
        if fault is None or fault.point != point:
            return
        if self.kills(fault):
            raise Crashed(f"call {fault.call} at the point {point!r}")
        if point == "before":
            raise StoreUnavailable(f"call {fault.call} was not sent (injected)")
        raise StoreUnclear(f"call {fault.call} was applied and its reply was lost (injected)")


class _Scripted:
    """What both colours share: the script, and the points every call passes."""

    script: Script

    @property
    def calls(self) -> int:
        return self.script.calls

    @contextmanager
    def _faulty(self, ops: Sequence[Op[Any]]) -> Iterator[None]:
        fault = self.script.next(ops)
        self.script.strike(fault, "before")
        yield
        self.script.strike(fault, "applied")
        self.script.strike(fault, "after")


class FaultStore(_Scripted, Around):
    """A sync store that follows a script."""

    def __init__(self, store: Store, script: Script | Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self.inner = store
        self.script = script if isinstance(script, Script) else Script(script)

    def execute(self, op: Op[R]) -> R:
        with self._faulty([op]):
            return self.inner.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        with self._faulty(ops):
            return self.inner.execute_many(ops)


class AsyncFaultStore(_Scripted, AsyncAround):
    """Its async twin."""

    def __init__(self, store: AsyncStore, script: Script | Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self.inner = store
        self.script = script if isinstance(script, Script) else Script(script)

    async def execute(self, op: Op[R]) -> R:
        with self._faulty([op]):
            return await self.inner.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        with self._faulty(ops):
            return await self.inner.execute_many(ops)
