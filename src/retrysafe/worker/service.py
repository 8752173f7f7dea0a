"""The worker as a process: every service beside the others, until it is told to stop.

Each service has `run_once()`; only the loops here wait: for a tick, for what will be due before it, or for the bell. A
service that fails is reported and tried again at the next tick: a database that is away for a minute must not end the
worker. `run()` gives each a thread; `arun()` (loop.py) gives each a task on the running loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from retrysafe.engine.bell import AGAIN
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import StoreError
from retrysafe.worker.completer import GRACE, Completer
from retrysafe.worker.enqueuer import LEASE, MAX_ATTEMPTS, Enqueuer
from retrysafe.worker.flows import Story, run
from retrysafe.worker.reaper import Reaper
from retrysafe.worker.receipts import Clearer, has_receipts
from retrysafe.worker.rounds import Duty, Round, Tally
from retrysafe.worker.sweeper import Sweeper

TICK = 60.0
LISTEN = 1.0
"""Seconds a listener listens before it looks whether the worker is to stop."""

_log = logging.getLogger("retrysafe.worker")


class Worker:
    """`tick`: seconds between two rounds of a service that nothing wakes. `grace`: seconds an abandoned operation is
    left to its client. `job_lease`: seconds until jobs that a dead worker had taken are taken by another.
    `job_attempts`: deliveries a job has before it is a dead letter."""

    def __init__(
        self,
        safe: RetrySafe,
        *,
        tick: float = TICK,
        grace: float = GRACE,
        job_lease: float = LEASE,
        job_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self.safe = safe
        self.tick = tick
        self._stopping = threading.Event()
        self.on_stop: list[Callable[[], None]] = []
        """Called by `stop`, maybe from a signal handler: they must not wait for anything."""
        self.tally = Tally()
        completer, sweeper, reaper = Completer(safe, grace), Sweeper(safe), Reaper(safe)
        self.duties = [
            Duty("completer", completer.round, lambda: completer.due_in),
            Duty("sweeper", sweeper.round),
            Duty("reaper", reaper.round),
        ]
        self._enqueuer: Enqueuer | None = None
        if safe.store.capabilities.outbox if safe.has_sync else safe.async_store.capabilities.outbox:
            self._enqueuer = Enqueuer(safe, safe.publishers, lease=job_lease, max_attempts=job_attempts)
            self.duties.insert(2, Duty("enqueuer", self._enqueuer.round))
        if has_receipts(safe):
            self.duties.append(Duty("receipts", Clearer(safe).round))

    @property
    def last(self) -> Round | None:
        """What was done lately: the last round, or everything since the last report."""
        return self.tally.last

    # One round ------------------------------------------------------------------------------

    def run_once(self) -> Round:
        """Each service once, one after the other."""
        began = time.monotonic()
        for duty in self.duties:
            if self._stopping.is_set():
                break
            self.carry_out(duty)
        return self.tally.report(time.monotonic() - began)

    def carry_out(self, duty: Duty) -> None:
        """One round of one service, in this thread."""
        with self.tally.at_work(duty.name) as done:
            done.append(self._run(duty.round(self._stopping.is_set)))

    def _run(self, story: Story[Any]) -> Any:
        return run(self.safe, story, self._stopping.wait)

    # Until it is stopped --------------------------------------------------------------------

    def run(self, report: Callable[[Round], object] = lambda round_: None) -> None:
        """Until `stop`. What was done is reported once a tick."""
        crew = Crew(self)
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                crew.call(self.side_by_side())
                if self.tally.last is None:
                    crew.first_round(self.tick)
                    self._report(report, began)
                self._stopping.wait(self.tick)
                self._report(report, began)
        finally:
            self._stopping.set()
            crew.leave()

    def _report(self, report: Callable[[Round], object], began: float) -> None:
        done = self.tally.report(time.monotonic() - began)
        if done.counts:
            report(done)

    def side_by_side(self) -> list[Duty]:
        """Each topic is a lane of its own. Asked again at every tick: a publisher may have come."""
        if self._enqueuer is None:
            return self.duties
        lanes = [
            Duty(f"enqueuer {lane.topic}", lane.round, lambda lane=lane: lane.due_in)  # type: ignore[misc]
            for lane in self._enqueuer.lanes()
        ]
        rest = [duty for duty in self.duties if duty.name != "enqueuer"]
        return [*rest, Duty("enqueuer", lambda stopping: self._unheard()), *lanes]

    def _unheard(self) -> Story[Any]:
        from retrysafe.worker.enqueuer import NOTHING

        assert self._enqueuer is not None
        return NOTHING._replace(waiting=(yield from self._enqueuer.unheard()))

    async def arun(self, report: Callable[[Round], object] = lambda round_: None) -> None:
        """The same on the running event loop: async operations and publishers run where the application's own pools
        and clients live. Cancelling it stops it."""
        from retrysafe.worker.loop import arun

        await arun(self, report)

    def stop(self) -> None:
        """After what is running now: one operation, one delivery. Safe to call from a signal handler."""
        self._stopping.set()
        for wake in self.on_stop:
            wake()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()


class Crew:
    """A thread for each service, and one that listens to the store."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._threads: dict[str, threading.Thread] = {}
        self._woken: dict[str, threading.Event] = {}
        worker.safe.bell.attach(self.wake)
        if worker.safe.store.capabilities.wakes:
            self._start("listener", self._listen)

    def call(self, duties: list[Duty]) -> None:
        """Those that are not at work yet, or whose thread has died."""
        for duty in duties:
            if duty.name not in self._threads or not self._threads[duty.name].is_alive():
                self._woken[duty.name] = threading.Event()
                self._worker.tally.expect(duty.name)
                self._start(duty.name, lambda duty=duty: self._serve(duty))  # type: ignore[misc]

    def first_round(self, seconds: float) -> None:
        """Wait until every service has been round once, but no longer than that."""
        self._worker.tally.wait_for_all(seconds, self._worker._stopping)

    def wake(self) -> None:
        for event in list(self._woken.values()):
            event.set()

    def leave(self) -> None:
        self._worker.safe.bell.detach(self.wake)
        self.wake()
        for thread in self._threads.values():
            thread.join()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        self._threads[name] = threading.Thread(target=work, name=f"retrysafe-{name}", daemon=True)
        self._threads[name].start()

    def _serve(self, duty: Duty) -> None:
        worker, woken = self._worker, self._woken[duty.name]
        again = False
        while not worker.stopping:
            worker.carry_out(duty)
            again = woken.wait(pause(worker.tick, duty.due_in(), again=again))
            woken.clear()

    def _listen(self) -> None:
        store: Any = self._worker.safe.store
        while not self._worker.stopping:
            began = time.monotonic()
            with suppress(StoreError):
                store.wait(self._worker.safe.bell.id, LISTEN)
            if time.monotonic() - began < LISTEN:
                self.wake()


def pause(tick: float, due_in: float | None, *, again: bool) -> float:
    """Seconds until a service goes round again: a tick, or when something is due, or soon after it was woken."""
    soonest = min(tick, tick if due_in is None else due_in)
    return min(soonest, AGAIN) if again else soonest
