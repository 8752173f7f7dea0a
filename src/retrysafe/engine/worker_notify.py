"""The bell: work for the worker was committed. Whoever waits in this process hears it at once; workers elsewhere are
told through the store, where it can (NOTIFY, PUBLISH).

It is a courtesy: a worker looks by itself at every tick, so a ring that is lost costs patience and nothing else.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from retrysafe.core.keys import frame

NOTIFY_INTERVAL_SECONDS = 0.02
"""Seconds between two announcements of one process: a NOTIFY takes a lock on the whole database at its commit."""

RECHECK_SECONDS = 0.05
"""Seconds after which a worker that was woken looks once more: longer than EVERY, so what was not announced is seen."""


def worker_channel_id(namespace: str) -> bytes:
    """What is announced for an application; no record has this id."""
    return hashlib.sha256(frame("retrysafe-bell", namespace)).digest()


class WorkerNotifier:
    """Thread-safe."""

    def __init__(self, namespace: str) -> None:
        self.id = worker_channel_id(namespace)
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], None]] = set()
        self._last = -NOTIFY_INTERVAL_SECONDS

    def wake_local(self) -> bool:
        """Wake those who wait here. Whether those elsewhere are to be told: not if they were just now."""
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
