"""A server that is connected and says nothing (stopped, cut off without a word) must not hold its caller for ever.

The driver waits for the socket without a limit, and cancelling it waits for the server once more. So when the time is
over the socket itself is shut down: the driver then sees an end, the connection is thrown away, and the operation is
as unclear as after any other lost reply.
"""

from __future__ import annotations

import heapq
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from retrysafe.errors import StoreUnavailable

STATEMENT_TIMEOUT_SECONDS = 15.0
WATCH_IDLE_SECONDS = 5.0
WATCH_SWEEP_SECONDS = 1.0
"""Seconds between two looks at what is over by now, so that the list does not grow with the load."""


def shut_down_socket(connection: Any) -> None:
    """End the conversation, whatever the driver is waiting for."""
    # It may be closed by now: then there is nothing to end.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)


class DeadlineWatch:
    """One thread for all connections of a store; asleep while nothing is under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, list[Any]]] = []
        self._order = count()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    @contextmanager
    def enforce(self, connection: Any, seconds: float) -> Iterator[None]:
        watched = [connection]
        due = time.monotonic() + seconds
        with self._changed:
            if self._thread is None:
                self._start()
            heapq.heappush(self._due, (due, next(self._order), watched))
            if due < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            watched.clear()

    def _start(self) -> None:
        """Before anything is watched: what a failed call left in the list would end somebody else's conversation."""
        thread = threading.Thread(target=self._run, name="retrysafe-deadlines", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(
                f"no thread to watch over a call to PostgreSQL ({error}): nothing was sent; try again"
            ) from error
        self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and not self._due[0][2]:
                    heapq.heappop(self._due)
                if not self._due:
                    self._wakes_at = math.inf
                    self._changed.wait(WATCH_IDLE_SECONDS)
                    if not self._due:
                        self._thread = None  # nobody came: the next one starts another
                        return
                    continue
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._wakes_at = time.monotonic() + min(left, WATCH_SWEEP_SECONDS)
                    self._changed.wait(min(left, WATCH_SWEEP_SECONDS))
                    continue
                late = list(heapq.heappop(self._due)[2])
            for connection in late:
                shut_down_socket(connection)
