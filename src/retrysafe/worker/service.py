"""The worker as a process: every service in turn, a tick apart, until it is told to stop.

Each service has `run_once()`; only this loop waits. A service that fails is reported and tried again at the next
tick: a database that is away for a minute must not end the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.engine.safe import RetrySafe
from retrysafe.worker.completer import GRACE, Completer
from retrysafe.worker.enqueuer import Enqueuer
from retrysafe.worker.reaper import Reaper
from retrysafe.worker.sweeper import Sweeper

TICK = 60.0

_log = logging.getLogger("retrysafe.worker")


class Round(NamedTuple):
    """What one round of all services did; an exception stands where a service failed."""

    counts: dict[str, Any]
    seconds: float
    ended: float = 0.0
    """On the monotonic clock of its process."""

    @property
    def healthy(self) -> bool:
        return not any(isinstance(count, Exception) for count in self.counts.values())


class Worker:
    def __init__(self, safe: RetrySafe, *, tick: float = TICK, grace: float = GRACE) -> None:
        self._safe = safe
        self.tick = tick
        self._stopping = threading.Event()
        self.last: Round | None = None
        self.services: dict[str, Callable[[], Any]] = {
            "completer": lambda: Completer(safe, grace).run_once(self._stopping.is_set),
            "sweeper": Sweeper(safe).run_once,
        }
        if safe.store.capabilities.outbox:
            self.services["enqueuer"] = lambda: Enqueuer(safe, safe.publishers).run_once(self._stopping.is_set)
        self.services["reaper"] = lambda: Reaper(safe).run_once(self._pause)

    def run_once(self) -> Round:
        """Each service once."""
        began = time.monotonic()
        counts: dict[str, Any] = {}
        for name, service in self.services.items():
            if self._stopping.is_set():
                break
            try:
                counts[name] = service()
            except Exception as error:
                _log.exception("the %s failed; it is tried again at the next tick", name)
                counts[name] = error
        ended = time.monotonic()
        self.last = Round(counts, ended - began, ended)
        return self.last

    def run(self, report: Callable[[Round], object] = lambda round_: None) -> None:
        """Until `stop`: a round, a report, a tick."""
        while not self._stopping.is_set():
            report(self.run_once())
            self._stopping.wait(self.tick)

    def stop(self) -> None:
        """After what is running now: one operation, one batch of jobs. Safe to call from a signal handler."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def _pause(self, seconds: float) -> bool:
        return not self._stopping.wait(seconds)
