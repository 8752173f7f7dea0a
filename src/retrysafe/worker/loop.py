"""The worker on the application's own event loop: a task for each service.

Here an async operation uses the pools and clients of the application, which belong to this loop. On the worker's own
background loop they would raise, attempt after attempt.
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
    """Until `worker.stop()`, or until it is cancelled; then what is running now is ended first."""
    crew = ServiceTasks(worker)
    try:
        while not worker.stopping:
            began = time.monotonic()
            crew.start_missing(worker.list_parallel_services())
            await crew.sleep(worker.tick)
            done = worker.status.report(time.monotonic() - began)
            if done.counts:
                report(done)
    finally:
        worker.stop()
        await crew.stop()


class ServiceTasks:
    """Its tasks, and one that listens to the store."""

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

    def start_missing(self, duties: list[Service]) -> None:
        for duty in duties:
            if duty.name not in self._tasks or self._tasks[duty.name].done():
                self._woken[duty.name] = asyncio.Event()
                self._worker.status.expect(duty.name)
                self._start(duty.name, self._serve(duty))

    def wake(self) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._wake)

    async def sleep(self, seconds: float) -> None:
        """A tick, or until the worker is stopped."""
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
            except asyncio.CancelledError:  # asked twice: whoever asks does not want to wait
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

    async def _serve(self, duty: Service) -> None:
        from retrysafe.worker.service import compute_pause

        worker, woken, again = self._worker, self._woken[duty.name], False
        while not worker.stopping:
            with worker.status.track(duty.name) as done:
                done.append(await flows.arun(worker.safe, duty.tick_flow(lambda: worker.stopping)))
            again = await wait_for_event(woken, compute_pause(worker.tick, duty.due_in(), again=again))
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
