"""The status of a worker's services: counts for the report, times and errors for the health page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrysafe.errors import StoreOutage
from retrysafe.worker.flows import ShouldStop, WorkerFlow

STOP_POLL_SECONDS = 0.2
"""How often a waiting thread checks whether the worker was stopped."""

_log = logging.getLogger("retrysafe.worker")


@dataclass(frozen=True)
class Service:
    """One service: the flow of one round, and the seconds until something that it has seen is due."""

    name: str
    tick_flow: Callable[[ShouldStop], WorkerFlow[Any]]
    due_in: Callable[[], float | None] = lambda: None

    @property
    def report_name(self) -> str:
        """Its name in the report, where the topics of the enqueuer are one service."""
        return self.name.partition(" ")[0]


class TickResult(NamedTuple):
    """The counts of each service. The value is an exception if the service failed in its last round."""

    counts: dict[str, Any]
    seconds: float
    ended: float = 0.0
    """On the monotonic clock of the process."""

    @property
    def out_of_reach(self) -> bool:
        """Whether a service failed because the store did not answer."""
        return any(isinstance(count, StoreOutage) for count in self.counts.values())

    @property
    def healthy(self) -> bool:
        return not any(isinstance(count, Exception) for count in self.counts.values())


class ServiceStatus(NamedTuple):
    """The state of one service."""

    began: float = 0.0
    """When the present round began; 0 between rounds."""
    ended: float = 0.0
    rounds: int = 0
    error: Exception | None = None


class WorkerStatus:
    """Collects the counts of all services. Thread-safe. `last` is the last report."""

    def __init__(self, on_round: Callable[[str, str], None] = lambda service, outcome: None) -> None:
        self._on_round = on_round
        """Called with the service, and `done` or `failed`."""
        self._changed = threading.Condition()
        self._outage_told = False
        self._counts: dict[str, Any] = {}
        self.by_service: dict[str, ServiceStatus] = {}
        self.last: TickResult | None = None

    def expect(self, name: str) -> None:
        with self._changed:
            self.by_service.setdefault(name, ServiceStatus())

    @contextmanager
    def track(self, name: str) -> Iterator[list[Any]]:
        """Track one round. Items that are put into the list are added to the counts. An error is kept and logged."""
        done: list[Any] = []
        with self._changed:
            self.by_service[name] = self.by_service.get(name, ServiceStatus())._replace(began=time.monotonic())
        error: Exception | None = None
        try:
            yield done
        except Exception as problem:
            self._log_failure(name, problem)
            error = problem
        else:
            self._outage_told = False
        finally:
            with self._changed:
                rounds = self.by_service[name].rounds + 1
                self.by_service[name] = ServiceStatus(0.0, time.monotonic(), rounds, error)
                service = name.partition(" ")[0]
                for count in [error] if error is not None else done:
                    self._counts[service] = add_counts(self._counts.get(service), count)
                self._changed.notify_all()
            self._on_round(service, "done" if error is None else "failed")

    def _log_failure(self, name: str, problem: Exception) -> None:
        """Log why a round failed. A store that does not answer fails every service at every tick: that is said once,
        without a traceback, until a round succeeds."""
        if not isinstance(problem, StoreOutage):
            _log.exception("the %s failed; it is tried again at the next tick", name)
        elif not self._outage_told:
            self._outage_told = True
            _log.error("the %s failed; it is tried again at the next tick: %s", name, problem)

    def report(self, seconds: float) -> TickResult:
        """The counts since the last report. A service that failed in its last round is reported as failed."""
        with self._changed:
            counts, self._counts = self._counts, {}
            for name, status in self.by_service.items():
                if status.error is not None:
                    counts[name.partition(" ")[0]] = status.error
            self.last = TickResult(
                dict(sorted(counts.items(), key=lambda item: report_order(item[0]))), seconds, time.monotonic()
            )
            return self.last

    def wait_for_all(self, seconds: float, stopping: threading.Event) -> None:
        """Wait until every service has done one round, but no longer than `seconds`."""
        until = time.monotonic() + seconds
        with self._changed:
            while not stopping.is_set() and not all(status.rounds for status in self.by_service.values()):
                left = until - time.monotonic()
                if left <= 0:
                    return
                # `stop` may be called from a signal handler, which must not take a lock: so this thread polls.
                self._changed.wait(min(left, STOP_POLL_SECONDS))


_REPORT_ORDER = ("completer", "sweeper", "enqueuer", "reaper", "receipts")


def report_order(service: str) -> int:
    return _REPORT_ORDER.index(service) if service in _REPORT_ORDER else len(_REPORT_ORDER)


def add_counts(before: Any, count: Any) -> Any:
    """The sum of two counts. An error is dropped if a later round succeeded."""
    if before is None or isinstance(before, Exception) or isinstance(count, Exception):
        return count
    if hasattr(count, "_fields"):
        return type(count)(*(one + another for one, another in zip(before, count, strict=True)))
    return before + count
