"""The worker: runs every service in parallel until it is stopped.

A service is a flow (`tick_flow`). Only the loops here wait: for a tick, for the time at which something is due, or for
a notification. A service that fails is reported and tried again at the next tick: a database that is down for a minute
must not end the worker. `run()` starts a thread for each service; `arun()` (loop.py) starts a task on the running loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from retrysafe.core.urls import safe_url
from retrysafe.engine.resume_times import GRACE_SECONDS
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.worker_notify import RECHECK_SECONDS
from retrysafe.errors import StoreError, StoreUnreachable, UsageError
from retrysafe.policy import DEFAULT_LEASE_SECONDS
from retrysafe.worker.completer import Completer
from retrysafe.worker.enqueuer import MAX_ATTEMPTS, NO_COUNTS, Enqueuer
from retrysafe.worker.flows import WorkerFlow, run
from retrysafe.worker.gauges import Gauges, can_ask
from retrysafe.worker.reaper import Reaper
from retrysafe.worker.receipt_reaper import ReceiptReaper, has_receipts
from retrysafe.worker.status import Service, TickResult, WorkerStatus
from retrysafe.worker.sweeper import Sweeper

TICK_SECONDS = 60.0
LISTEN_SECONDS = 1.0
"""How long a listener waits before it checks whether the worker is to stop."""

_log = logging.getLogger("retrysafe.worker")


class Worker:
    """`tick`: seconds between two rounds of a service, if nothing wakes it. `grace`: seconds for which an abandoned
    operation is left to its client. `job_lease`: seconds until another worker takes the jobs of a dead one.
    `job_attempts`: deliveries of a job before it becomes a dead letter."""

    def __init__(
        self,
        safe: RetrySafe,
        *,
        tick: float = TICK_SECONDS,
        grace: float = GRACE_SECONDS,
        job_lease: float = DEFAULT_LEASE_SECONDS,
        job_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        if isinstance(safe, str):
            raise UsageError(f"Worker({safe_url(safe)!r}): give it the object of your application, Worker(safe)")
        self.safe = safe
        self.tick = tick
        self._stopping = threading.Event()
        self.on_stop: list[Callable[[], None]] = []
        """Callbacks of `stop`, which may run in a signal handler: they must not block."""
        self.status = WorkerStatus(lambda service, outcome: safe.figures.count("rounds", (service, outcome)))
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
        capabilities = safe.store.capabilities if safe.has_sync else safe.async_store.capabilities
        if can_ask(capabilities):
            self.services.append(Service("gauges", Gauges(safe, capabilities).tick_flow))
        if has_receipts(safe):
            self.services.append(Service("receipts", ReceiptReaper(safe).tick_flow))

    @property
    def last(self) -> TickResult | None:
        """The last report: of the last round, or of everything since the report before it."""
        return self.status.last

    # One round ------------------------------------------------------------------------------

    def run_once(self) -> TickResult:
        """Run each service once, one after the other. If no connection to the store can be made, the others are left
        out: each would wait for a connection as long as the first."""
        began = time.monotonic()
        for service in self.services:
            if self._stopping.is_set():
                break
            self.run_service(service)
            if isinstance(self.status.by_service[service.name].error, StoreUnreachable):
                break
        return self.status.report(time.monotonic() - began)

    def run_service(self, service: Service) -> None:
        """Run one round of one service in this thread."""
        with self.status.track(service.name) as done:
            if (count := self._run_flow(service.tick_flow(self._stopping.is_set))) is not None:
                done.append(count)

    def _run_flow(self, flow: WorkerFlow[Any]) -> Any:
        return run(self.safe, flow, self._stopping.wait)

    # Until it is stopped --------------------------------------------------------------------

    def run(self, report: Callable[[TickResult], object] = lambda round_: None) -> None:
        """Run until `stop`. `report` is called once a tick."""
        threads = ServiceThreads(self)
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                threads.start_missing(self.list_parallel_services())
                if self.status.last is None:
                    threads.wait_for_first_tick(self.tick)
                    self._report(report, began)
                self._stopping.wait(self.tick)
                self._report(report, began)
        finally:
            self._stopping.set()
            threads.stop()

    def _report(self, report: Callable[[TickResult], object], began: float) -> None:
        done = self.status.report(time.monotonic() - began)
        if done.counts:
            report(done)

    def list_parallel_services(self) -> list[Service]:
        """All services, with a service of its own for each topic. Called at every tick: publishers may have been
        added."""
        if self._enqueuer is None:
            return self.services
        queues = [
            Service(f"enqueuer {queue.topic}", queue.tick_flow, lambda queue=queue: queue.due_in)  # type: ignore[misc]
            for queue in self._enqueuer.topic_queues()
        ]
        others = [service for service in self.services if service.name != "enqueuer"]
        return [*others, Service("enqueuer", lambda stopping: self._count_unpublishable()), *queues]

    def _count_unpublishable(self) -> WorkerFlow[Any]:
        assert self._enqueuer is not None
        return NO_COUNTS._replace(waiting=(yield from self._enqueuer.count_unpublishable()))

    async def arun(self, report: Callable[[TickResult], object] = lambda round_: None) -> None:
        """Like `run`, on the running event loop: async operations and publishers run where the application's own pools
        and clients live. Cancelling it stops the worker."""
        from retrysafe.worker.loop import arun

        await arun(self, report)

    def stop(self) -> None:
        """Stop after the work in progress (one operation, one delivery). Safe to call from a signal handler."""
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

    def start_missing(self, services: list[Service]) -> None:
        """Start the services that have no running thread."""
        for service in services:
            if service.name not in self._threads or not self._threads[service.name].is_alive():
                self._woken[service.name] = threading.Event()
                self._worker.status.expect(service.name)
                self._start(service.name, lambda service=service: self._serve(service))  # type: ignore[misc]

    def wait_for_first_tick(self, seconds: float) -> None:
        """Wait until every service has done one round, but no longer than `seconds`."""
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

    def _serve(self, service: Service) -> None:
        worker, woken = self._worker, self._woken[service.name]
        again = False
        while not worker.stopping:
            worker.run_service(service)
            again = woken.wait(compute_pause(worker.tick, service.due_in(), again=again))
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
    """Seconds until the next round of a service: a tick, or less if something is due, or if it was just woken."""
    soonest = min(tick, tick if due_in is None else due_in)
    return min(soonest, RECHECK_SECONDS) if again else soonest
