"""An asyncio event loop with virtual time and a seeded order, for several simulated processes at once.

Within one host callbacks run in the order in which they were scheduled, as asyncio runs them. Between hosts the order
is drawn. When no host has anything to do, time jumps to the next timer. Nothing here waits for real.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import Any

from retrysafe.testing.simulation.hosts import HOST, TRUE_TIME, Host


class Overrun(AssertionError):
    """A simulation that does not come to its end: code that spins, or a time that never comes."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs the callbacks of all hosts in one thread."""

    def __init__(self, order: Random, max_steps: int) -> None:
        super().__init__()
        self.now = 0.0
        """True time, in seconds since the start."""
        self.steps = 0
        self._order = order
        self._max_steps = max_steps
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Host]] = []
        self._number = count()
        self._hosts: list[Host] = [TRUE_TIME]
        TRUE_TIME.alive = True
        TRUE_TIME.ready.clear()
        TRUE_TIME.tasks.clear()

    def add_host(self, host: Host) -> Host:
        self._hosts.append(host)
        return host

    # What asyncio asks of a loop -----------------------------------------------------------------

    def time(self) -> float:
        return HOST.get().monotonic(self.now)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]  # typeshed names a variadic type
        handle = events.Handle(callback, args, self, context or copy_context())
        host = handle._context.get(HOST, TRUE_TIME)  # type: ignore[attr-defined]
        if host.alive:
            host.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        host = HOST.get()
        return self._add_timer(host.true_time(when), when, callback, args, context, host)

    def call_at_true_time(self, when: float, callback: Callable[..., Any], *args: Any, host: Host = TRUE_TIME) -> None:
        """For the network and the schedule of faults: at a true time, in a host's context."""
        self._add_timer(when, when, callback, args, host.new_context(), host)

    def _add_timer(
        self,
        true_when: float,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None,
        host: Host,
    ) -> asyncio.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context or copy_context())
        handle._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._timers, (true_when, next(self._number), handle, host))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap and is passed over."""

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> Any:  # type: ignore[override]  # as above
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # tasks of a killed process are never awaited
        HOST.get().tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """At once: a thread would not be deterministic."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Errors of tasks that nobody awaits. Those of killed hosts are no news."""
        if HOST.get().alive:
            self.unhandled.append(context)

    unhandled: list[dict[str, Any]]

    # The schedule ----------------------------------------------------------------------------------

    def run_until(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of nobody's until it ends, and everything else beside it."""
        self.unhandled = []
        self._thread_id = 0
        events._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._run_next()
            return task.result()
        finally:
            events._set_running_loop(None)
            self._thread_id = None  # type: ignore[assignment]  # what BaseEventLoop itself sets

    def _run_next(self) -> None:
        self.steps += 1
        if self.steps > self._max_steps:
            raise Overrun(f"not over after {self._max_steps} steps, at {self.now:.3f} s")
        able = [host for host in self._hosts if host.ready and host.can_run(self.now)]
        if not able:
            self._advance()
            return
        host = able[0] if len(able) == 1 else able[int(self._order.random() * len(able))]
        handle = host.ready.popleft()
        if not handle.cancelled():
            handle._run()

    def _advance(self) -> None:
        """Jump to the next timer, or to the end of the next freeze if that is earlier."""
        thaws = [
            host.frozen_until for host in self._hosts if host.alive and host.ready and host.frozen_until > self.now
        ]
        due = self._timers[0][0] if self._timers else None
        if due is None and not thaws:
            raise Overrun(f"nothing is left to happen at {self.now:.3f} s, and it is not over")
        if thaws and (due is None or min(thaws) <= due):
            self.now = max(self.now, min(thaws))
            return
        when, _, handle, host = heapq.heappop(self._timers)
        self.now = max(self.now, when)
        if host.alive and not handle.cancelled():
            host.ready.append(handle)

    def abandon(self, hosts: Iterable[Host]) -> None:
        """The simulation is over: nothing runs any more, and nothing that is collected complains."""
        for host in hosts:
            host.crash()
        self._timers.clear()
        self.close()
