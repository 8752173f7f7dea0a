"""An asyncio event loop with virtual time and a seeded order, for several simulated processes at once.

Within one host callbacks run in the order in which they were scheduled, as asyncio runs them. Between hosts the order
is drawn. When no host has anything to do, time jumps to the next timer. Nothing here waits for real.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from retrysafe.testing.simulation.hosts import HOST, TRUE_TIME, Host


class Overrun(AssertionError):
    """A simulation that does not come to its end: code that spins, or a time that never comes."""


class ScheduledCall(list[Any]):
    """A callback that is to run: the callback, its arguments, its context (None: it was cancelled), and when by the
    host's clock. asyncio calls it a handle, and asks no more of it than this. It is a list because one is made for each
    step: a list needs no call of an `__init__`."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # each is itself only, as asyncio's are

    @property
    def callback(self) -> Callable[..., Any]:
        found: Callable[..., Any] = self[0]
        return found

    def cancel(self) -> None:
        self[2] = None
        self[1] = ()

    def cancelled(self) -> bool:
        return self[2] is None

    def when(self) -> float:
        when: float = self[3]
        return when


MANY_TASKS = 40

Timer = tuple[float, int, ScheduledCall, Host]
"""When it is due in true time, a number for the order, what to run, and where."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs the callbacks of all hosts in one thread."""

    def __init__(self, order: Random, max_steps: int) -> None:
        super().__init__()
        self.now = 0.0
        """True time, in seconds since the start."""
        self.steps = 0
        self.unhandled: list[dict[str, Any]] = []
        """Errors that nobody awaited, of processes that were alive."""
        self._draw = order.random
        self._max_steps = max_steps
        self._timers: list[Timer] = []
        self._number = count()
        self._busy: list[Host] = []
        """The hosts that have something to run and can."""
        self._hosts: list[Host] = [TRUE_TIME]
        TRUE_TIME.alive = True
        TRUE_TIME.ready.clear()
        TRUE_TIME.tasks.clear()

    @property
    def hosts(self) -> list[Host]:
        """Every process that ever ran, the dead ones included."""
        return self._hosts

    def add_host(self, host: Host) -> Host:
        self._hosts.append(host)
        return host

    # What asyncio asks of a loop -----------------------------------------------------------------

    # The clocks of a host (`Host.monotonic`, `Host.true_time`) are written out where each callback passes: a call takes
    # longer than what it computes.

    def time(self) -> float:
        host = HOST.get(TRUE_TIME)
        return (self.now - host.suspended) * host.rate

    get_debug = bool  # False; asyncio asks for each future, and this needs no frame

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]  # typeshed names a variadic type
        if context is None:
            context = copy_context()
        call = ScheduledCall((callback, args, context, 0.0))
        host = context.get(HOST, TRUE_TIME)
        if host.alive:
            ready = host.ready
            if not ready and host.frozen_until <= self.now:
                self._busy.append(host)
            ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        host = HOST.get(TRUE_TIME)
        when = (self.now - host.suspended) * host.rate + delay
        call = ScheduledCall((callback, args, copy_context() if context is None else context, when))
        true = host.true_time(when) if host.is_off else when
        heappush(self._timers, (true, next(self._number), call, host))
        return call

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        host = HOST.get(TRUE_TIME)
        call = ScheduledCall((callback, args, copy_context() if context is None else context, when))
        true = host.true_time(when) if host.is_off else when
        heappush(self._timers, (true, next(self._number), call, host))
        return call

    def call_at_true_time(self, when: float, callback: Callable[..., Any], *args: Any, host: Host = TRUE_TIME) -> None:
        """For the network and the schedule of faults: at a true time, in a host's context."""
        call = ScheduledCall((callback, args, host.context, 0.0))
        heappush(self._timers, (when, next(self._number), call, host))

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> Any:  # type: ignore[override]  # as above
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # tasks of a killed process are never awaited
        host = HOST.get(TRUE_TIME)
        if len(host.tasks) > MANY_TASKS:
            host.forget_done_tasks()
        host.tasks.append(task)
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
        if HOST.get(TRUE_TIME).alive:
            self.unhandled.append(context)

    # Hosts that stand still -------------------------------------------------------------------------

    def freeze(self, host: Host, until: float) -> None:
        """Nothing of a host runs until a true time. What is due meanwhile runs then."""
        if until <= max(self.now, host.frozen_until):
            return
        host.frozen_until = until
        if host in self._busy:
            self._busy.remove(host)
        self.call_at_true_time(until, self._go_on, host)

    def suspend(self, host: Host, until: float) -> None:
        """A machine sleeps: like a freeze, but its monotonic clock stands still, and so do its timers."""
        host.suspended += max(0.0, until - max(self.now, host.frozen_until))
        host.is_off = True
        self.freeze(host, until)

    def thaw(self, host: Host) -> None:
        """A host goes on before its time."""
        host.frozen_until = 0.0
        self._go_on(host)

    def _go_on(self, host: Host) -> None:
        if host.ready and host.can_run(self.now) and host not in self._busy:
            self._busy.append(host)

    # The schedule ----------------------------------------------------------------------------------

    def run_until(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of nobody's until it ends, and everything else beside it."""
        self._thread_id = 0
        events._set_running_loop(self)
        try:
            task = self.create_task(main)
            self._run_while(task)
            return task.result()
        finally:
            events._set_running_loop(None)
            self._thread_id = None  # type: ignore[assignment]  # what BaseEventLoop itself sets

    @contextmanager
    def run_nothing(self) -> Iterator[None]:
        """Code that is closed meanwhile may start tasks: here, where nothing runs them, and never in the loop that
        somebody else has left to this thread."""
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)

    def _run_while(self, task: asyncio.Task[Any]) -> None:
        """Run one callback after the other until a task is done. One function: it runs millions of times a minute."""
        done, busy, draw, max_steps = task.done, self._busy, self._draw, self._max_steps
        timers = self._timers
        while not done():
            self.steps = steps = self.steps + 1
            if steps > max_steps:
                raise Overrun(f"not over after {max_steps} steps, at {self.now:.3f} s")
            if busy:
                index = 0 if len(busy) == 1 else int(draw() * len(busy))
                host = busy[index]
                ready = host.ready
                if not ready:  # it was killed
                    del busy[index]
                    continue
                call = ready.popleft()
                if not ready:
                    del busy[index]
            else:
                host, call = self._advance(timers)
            callback, args, context, _ = call
            if context is None:
                continue
            try:
                context.run(callback, *args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                if host.alive:
                    self.unhandled.append({"message": "a callback failed", "exception": error})
            if host.lag:
                self.freeze(host, self.now + host.lag)

    def _advance(self, timers: list[Timer]) -> tuple[Host, ScheduledCall]:
        """Jump to the next timer of a host that can run, and take it. What is due on a frozen host waits there."""
        while timers:
            when, number, call, host = heappop(timers)
            if call[2] is None or not host.alive:
                continue
            if host.suspended and call[3] and host.true_time(call[3]) > when:
                # Set before the machine slept: by its own clock it is not due yet.
                heappush(timers, (host.true_time(call[3]), number, call, host))
                continue
            if when > self.now:
                self.now = when
            ready = host.ready
            if not ready and host.frozen_until <= self.now:
                return host, call
            ready.append(call)
        raise Overrun(f"nothing is left to happen at {self.now:.3f} s, and it is not over")

    def abandon(self, hosts: Iterable[Host]) -> None:
        """The simulation is over: nothing runs any more, and nothing that is collected complains."""
        for host in hosts:
            host.end()
        self._timers.clear()
        self._busy.clear()
        self.close()
