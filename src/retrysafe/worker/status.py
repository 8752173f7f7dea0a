"""What the services of a worker did, and how they are: counts for the report, times for the health page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrysafe.worker.flows import ShouldStop, WorkerFlow

STOP_POLL_SECONDS = 0.2
"""Seconds after which who waits looks whether the worker was stopped."""

_log = logging.getLogger("retrysafe.worker")


@dataclass(frozen=True)
class Service:
    """One service: how to go round once, and when something it has seen is due (in seconds)."""

    name: str
    tick_flow: Callable[[ShouldStop], WorkerFlow[Any]]
    due_in: Callable[[], float | None] = lambda: None

    @property
    def report_name(self) -> str:
        """Its name in the report: the lanes of the enqueuer are one there."""
        return self.name.partition(" ")[0]


class TickResult(NamedTuple):
    """What the services did; an exception stands where a service failed the last time."""

    counts: dict[str, Any]
    seconds: float
    ended: float = 0.0
    """On the monotonic clock of its process."""

    @property
    def healthy(self) -> bool:
        return not any(isinstance(count, Exception) for count in self.counts.values())


class ServiceStatus(NamedTuple):
    """How one service is."""

    began: float = 0.0
    """Of the round it is in; 0 while it waits."""
    ended: float = 0.0
    rounds: int = 0
    error: Exception | None = None


class WorkerStatus:
    """Thread-safe. `last` is what was reported last."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: dict[str, Any] = {}
        self.by_service: dict[str, ServiceStatus] = {}
        self.last: TickResult | None = None

    def expect(self, name: str) -> None:
        with self._changed:
            self.by_service.setdefault(name, ServiceStatus())

    @contextmanager
    def track(self, name: str) -> Iterator[list[Any]]:
        """What is put into the list is added to the counts; an error is kept, and told."""
        done: list[Any] = []
        with self._changed:
            self.by_service[name] = self.by_service.get(name, ServiceStatus())._replace(began=time.monotonic())
        error: Exception | None = None
        try:
            yield done
        except Exception as problem:
            _log.exception("the %s failed; it is tried again at the next tick", name)
            error = problem
        finally:
            with self._changed:
                post = self.by_service[name]
                self.by_service[name] = ServiceStatus(0.0, time.monotonic(), post.rounds + 1, error)
                service = name.partition(" ")[0]
                for count in [error] if error is not None else done:
                    self._counts[service] = add_counts(self._counts.get(service), count)
                self._changed.notify_all()

    def report(self, seconds: float) -> TickResult:
        """Everything since the last report. Those that failed the last time they went round are told as failed."""
        with self._changed:
            counts, self._counts = self._counts, {}
            for name, post in self.by_service.items():
                if post.error is not None:
                    counts[name.partition(" ")[0]] = post.error
            self.last = TickResult(
                dict(sorted(counts.items(), key=lambda item: report_order(item[0]))), seconds, time.monotonic()
            )
            return self.last

    def wait_for_all(self, seconds: float, stopping: threading.Event) -> None:
        """Until every service has been round once, but no longer than that."""
        until = time.monotonic() + seconds
        with self._changed:
            while not stopping.is_set() and not all(post.rounds for post in self.by_service.values()):
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(
                    min(left, STOP_POLL_SECONDS)
                )  # whoever stops the worker may not take a lock: look by itself


_REPORT_ORDER = ("completer", "sweeper", "enqueuer", "reaper", "receipts")


def report_order(service: str) -> int:
    return _REPORT_ORDER.index(service) if service in _REPORT_ORDER else len(_REPORT_ORDER)


def add_counts(before: Any, count: Any) -> Any:
    """Two counts as one. An error is forgotten when a later round went well."""
    if before is None or isinstance(before, Exception) or isinstance(count, Exception):
        return count
    if hasattr(count, "_fields"):
        return type(count)(*(one + another for one, another in zip(before, count, strict=True)))
    return before + count
