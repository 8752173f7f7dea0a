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

from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.worker_notify import RECHECK_SECONDS
from retrysafe.errors import StoreError
from retrysafe.worker.completer import GRACE_SECONDS, Completer
from retrysafe.worker.enqueuer import LEASE_SECONDS, MAX_ATTEMPTS, Enqueuer
from retrysafe.worker.flows import WorkerFlow, run
from retrysafe.worker.reaper import Reaper
from retrysafe.worker.receipts import Clearer, has_receipts
from retrysafe.worker.status import Service, TickResult, WorkerStatus
from retrysafe.worker.sweeper import Sweeper

TICK_SECONDS = 60.0
LISTEN_SECONDS = 1.0
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
        tick: float = TICK_SECONDS,
        grace: float = GRACE_SECONDS,
        job_lease: float = LEASE_SECONDS,
        job_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self.safe = safe
        self.tick = tick
        self._stopping = threading.Event()
        self.on_stop: list[Callable[[], None]] = []
        """Called by `stop`, maybe from a signal handler: they must not wait for anything."""
        self.status = WorkerStatus()
        completer, sweeper, reaper = Completer(safe, grace), Sweeper(safe), Reaper(safe)
        self.services = [
            Service("completer", completer.tick_flow, lambda: completer.due_in),
            Service("sweeper", sweeper.tick_flow),
            Service("reaper", reaper.tick_flow),
        ]
        self._enqueuer: Enqueuer | None = None
        if safe.store.capabilities.outbox if safe.has_sync else safe.async_store.capabilities.outbox:
            self._enqueuer = Enqueuer(safe, safe.publishers, lease=job_lease, max_attempts=job_attempts)
            self.services.insert(2, Service("enqueuer", self._enqueuer.tick_flow))
        if has_receipts(safe):
            self.services.append(Service("receipts", Clearer(safe).round))

    @property
    def last(self) -> TickResult | None:
        """What was done lately: the last round, or everything since the last report."""
        return self.status.last

    # One round ------------------------------------------------------------------------------

    def run_once(self) -> TickResult:
        """Each service once, one after the other."""
        began = time.monotonic()
        for duty in self.services:
            if self._stopping.is_set():
                break
            self.run_service(duty)
        return self.status.report(time.monotonic() - began)

    def run_service(self, duty: Service) -> None:
        """One round of one service, in this thread."""
        with self.status.track(duty.name) as done:
            done.append(self._run_flow(duty.tick_flow(self._stopping.is_set)))

    def _run_flow(self, story: WorkerFlow[Any]) -> Any:
        return run(self.safe, story, self._stopping.wait)

    # Until it is stopped --------------------------------------------------------------------

    def run(self, report: Callable[[TickResult], object] = lambda round_: None) -> None:
        """Until `stop`. What was done is reported once a tick."""
        crew = ServiceThreads(self)
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                crew.start_missing(self.list_parallel_services())
                if self.status.last is None:
                    crew.wait_for_first_tick(self.tick)
                    self._report(report, began)
                self._stopping.wait(self.tick)
                self._report(report, began)
        finally:
            self._stopping.set()
            crew.stop()

    def _report(self, report: Callable[[TickResult], object], began: float) -> None:
        done = self.status.report(time.monotonic() - began)
        if done.counts:
            report(done)

    def list_parallel_services(self) -> list[Service]:
        """Each topic is a lane of its own. Asked again at every tick: a publisher may have come."""
        if self._enqueuer is None:
            return self.services
        lanes = [
            Service(f"enqueuer {lane.topic}", lane.tick_flow, lambda lane=lane: lane.due_in)  # type: ignore[misc]
            for lane in self._enqueuer.topic_queues()
        ]
        rest = [duty for duty in self.services if duty.name != "enqueuer"]
        return [*rest, Service("enqueuer", lambda stopping: self._count_unpublishable()), *lanes]

    def _count_unpublishable(self) -> WorkerFlow[Any]:
        from retrysafe.worker.enqueuer import NO_COUNTS

        assert self._enqueuer is not None
        return NO_COUNTS._replace(waiting=(yield from self._enqueuer.count_unpublishable()))

    async def arun(self, report: Callable[[TickResult], object] = lambda round_: None) -> None:
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


class ServiceThreads:
    """A thread for each service, and one that listens to the store."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._threads: dict[str, threading.Thread] = {}
        self._woken: dict[str, threading.Event] = {}
        worker.safe.worker_notifier.attach(self.wake)
        if worker.safe.store.capabilities.wakes:
            self._start("listener", self._listen)

    def start_missing(self, duties: list[Service]) -> None:
        """Those that are not at work yet, or whose thread has died."""
        for duty in duties:
            if duty.name not in self._threads or not self._threads[duty.name].is_alive():
                self._woken[duty.name] = threading.Event()
                self._worker.status.expect(duty.name)
                self._start(duty.name, lambda duty=duty: self._serve(duty))  # type: ignore[misc]

    def wait_for_first_tick(self, seconds: float) -> None:
        """Wait until every service has been round once, but no longer than that."""
        self._worker.status.wait_for_all(seconds, self._worker._stopping)

    def wake(self) -> None:
        for event in list(self._woken.values()):
            event.set()

    def stop(self) -> None:
        self._worker.safe.worker_notifier.detach(self.wake)
        self.wake()
        for thread in self._threads.values():
            thread.join()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        self._threads[name] = threading.Thread(target=work, name=f"retrysafe-{name}", daemon=True)
        self._threads[name].start()

    def _serve(self, duty: Service) -> None:
        worker, woken = self._worker, self._woken[duty.name]
        again = False
        while not worker.stopping:
            worker.run_service(duty)
            again = woken.wait(compute_pause(worker.tick, duty.due_in(), again=again))
            woken.clear()

    def _listen(self) -> None:
        store: Any = self._worker.safe.store
        while not self._worker.stopping:
            began = time.monotonic()
            with suppress(StoreError):
                store.wait(self._worker.safe.worker_notifier.id, LISTEN_SECONDS)
            if time.monotonic() - began < LISTEN_SECONDS:
                self.wake()


def compute_pause(tick: float, due_in: float | None, *, again: bool) -> float:
    """Seconds until a service goes round again: a tick, or when something is due, or soon after it was woken."""
    soonest = min(tick, tick if due_in is None else due_in)
    return min(soonest, RECHECK_SECONDS) if again else soonest
