"""The worker on the application's own event loop: a task for each service.

An async operation uses the pools and clients of the application, which belong to this loop. On the worker's own
background loop they would raise an error in every attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrysafe.errors import StoreError
from retrysafe.worker import flows
from retrysafe.worker.status import Service, TickResult

if TYPE_CHECKING:
    from retrysafe.worker.service import Worker


async def arun(worker: Worker, report: Callable[[TickResult], object]) -> None:
    """Run until `worker.stop()`, or until cancelled. Work that is in progress ends first."""
    tasks = ServiceTasks(worker)
    try:
        while not worker.stopping:
            began = time.monotonic()
            tasks.start_missing(worker.list_parallel_services())
            await tasks.sleep(worker.tick)
            done = worker.status.report(time.monotonic() - began)
            if done.counts:
                report(done)
    finally:
        worker.stop()
        await tasks.stop()


class ServiceTasks:
    """A task for each service, and one that listens to the store."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._woken: dict[str, asyncio.Event] = {}
        self._stopped = asyncio.Event()
        worker.safe.worker_notifier.attach(self.wake)
        worker.on_stop.append(self.wake)
        if worker.safe.async_store.capabilities.wakes:
            self._start("listener", self._listen())

    def start_missing(self, services: list[Service]) -> None:
        """Start the services that have no running task."""
        for service in services:
            if service.name not in self._tasks or self._tasks[service.name].done():
                self._woken[service.name] = asyncio.Event()
                self._worker.status.expect(service.name)
                self._start(service.name, self._serve(service))

    def wake(self) -> None:
        """Wake all services. May be called from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake)

    async def sleep(self, seconds: float) -> None:
        """Sleep, or return early if the worker is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def stop(self) -> None:
        self._worker.safe.worker_notifier.detach(self.wake)
        self._worker.on_stop.remove(self.wake)
        self._wake()
        listener = self._tasks.pop("listener", None)
        if listener is not None:
            listener.cancel()
            await asyncio.wait({listener})
        if self._tasks:
            try:
                await asyncio.wait(self._tasks.values())
            except asyncio.CancelledError:  # cancelled a second time: do not wait any longer
                for task in self._tasks.values():
                    task.cancel()
                await asyncio.wait(self._tasks.values())
                raise

    def _wake(self) -> None:
        if self._worker.stopping:
            self._stopped.set()
        for event in self._woken.values():
            event.set()

    def _start(self, name: str, work: Any) -> None:
        self._tasks[name] = asyncio.create_task(work, name=f"retrysafe-{name}")

    async def _serve(self, service: Service) -> None:
        from retrysafe.worker.service import compute_pause

        worker, woken, again = self._worker, self._woken[service.name], False
        while not worker.stopping:
            with worker.status.track(service.name) as done:
                count = await flows.arun(worker.safe, service.tick_flow(lambda: worker.stopping))
                if count is not None:
                    done.append(count)
            again = await wait_for_event(woken, compute_pause(worker.tick, service.due_in(), again=again))
            woken.clear()

    async def _listen(self) -> None:
        store: Any = self._worker.safe.async_store
        while True:
            began = time.monotonic()
            with suppress(StoreError):
                await store.wait(self._worker.safe.worker_notifier.id, self._worker.tick)
            if time.monotonic() - began < self._worker.tick:
                self._wake()


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
