"""Notifies the worker that work for it was committed. Workers in this process are woken directly; workers elsewhere get
a notification through the store, where the store can send one (NOTIFY, PUBLISH).

Best effort: a worker polls at every tick, so a lost notification only delays the work.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from retrysafe.core.keys import frame

NOTIFY_INTERVAL_SECONDS = 0.02
"""Minimum time between two notifications of one process: a NOTIFY locks the whole database when it commits."""

RECHECK_SECONDS = 0.05
"""When a woken worker polls once more: longer than NOTIFY_INTERVAL_SECONDS, so that it finds work whose notification
was left out."""


def worker_channel_id(namespace: str) -> bytes:
    """The id under which the worker of an application is notified. No record has it."""
    return hashlib.sha256(frame("retrysafe-bell", namespace)).digest()


class WorkerNotifier:
    """The notifier of one application. Thread-safe."""

    def __init__(self, namespace: str) -> None:
        self.id = worker_channel_id(namespace)
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], None]] = set()
        self._last = -NOTIFY_INTERVAL_SECONDS

    def wake_local(self) -> bool:
        """Wake the workers of this process. True if the store is to notify the others: not if it has just done so."""
        with self._lock:
            waiting, now = list(self._waiting), time.monotonic()
            due = now - self._last >= NOTIFY_INTERVAL_SECONDS
            if due:
                self._last = now
        for wake in waiting:
            wake()
        return due

    def attach(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.add(wake)

    def detach(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.discard(wake)
