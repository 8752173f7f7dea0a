"""Statement deadlines: a server that is connected and does not answer must not block its caller for ever.

The server may have been stopped, or the network cut. psycopg waits for the socket without a limit, and its cancellation
waits for the server again. So at the deadline the socket itself is shut down. The driver then reads an end of file, the
pool throws the connection away, and the outcome of the operation is unclear, as after any other lost reply.
"""

from __future__ import annotations

import heapq
import math
import os
import socket
import threading
import time
from contextlib import suppress
from itertools import count
from typing import Any

from retrysafe.errors import StoreUnavailable

STATEMENT_TIMEOUT_SECONDS = 15.0
WATCH_IDLE_SECONDS = 5.0
WATCH_SWEEP_SECONDS = 1.0
"""Seconds between two removals of finished calls, so that the list does not grow with the load."""


def shut_down_socket(connection: Any) -> None:
    """Shut the socket down, so that the driver stops waiting for it. A connection that is closed already is ignored."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


class WatchedConnection:
    """A connection whose socket is shut down at its deadline, unless `cancel` is called before."""

    __slots__ = ("connection",)

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def cancel(self) -> None:
        self.connection = None


class DeadlineWatch:
    """One thread that watches all connections of a sync store. It ends when it was idle for WATCH_IDLE_SECONDS.

    The async store needs none of this: its event loop has timers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, WatchedConnection]] = []
        self._order = count()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def start(self, connection: Any, seconds: float) -> WatchedConnection:
        """Watch this connection from now on."""
        watched = WatchedConnection(connection)
        due = time.monotonic() + seconds
        with self._changed:
            if self._thread is None:
                self._start_thread()
            heapq.heappush(self._due, (due, next(self._order), watched))
            if due < self._wakes_at:
                self._changed.notify()
        return watched

    def _start_thread(self) -> None:
        """Called before the connection is in the list: if no thread can be started, the call fails, and an entry that
        it left behind would later shut down the connection of another caller."""
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
                while self._due and self._due[0][2].connection is None:
                    heapq.heappop(self._due)
                if not self._due:
                    self._wakes_at = math.inf
                    self._changed.wait(WATCH_IDLE_SECONDS)
                    if not self._due:
                        self._thread = None  # the next call starts another thread
                        return
                    continue
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._wakes_at = time.monotonic() + min(left, WATCH_SWEEP_SECONDS)
                    self._changed.wait(min(left, WATCH_SWEEP_SECONDS))
                    continue
                late = heapq.heappop(self._due)[2].connection
            if late is not None:
                shut_down_socket(late)
