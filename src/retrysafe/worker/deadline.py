"""A deadline for a whole exchange over a socket.

A socket's own timeout starts again with each read, so a server that sends a byte now and then could hold its client for
ever.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Deadline:
    """`remaining()` returns the seconds that are left, and raises TimeoutError if there are none."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until = clock() + seconds

    def remaining(self) -> float:
        left = self._until - self._clock()
        if left <= 0:
            raise TimeoutError(f"it took longer than {self.seconds:g} s")
        return left


def run_within(deadline: Deadline, work: Callable[[], T]) -> T:
    """Run `work` in a thread, and return its result or raise its error. For work that has no timeout of its own, such
    as a DNS lookup. If the deadline passes first, the thread is abandoned and ends by itself."""
    ended: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((work(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, name="retrysafe-lookup", daemon=True)
    thread.start()
    thread.join(deadline.remaining())
    if not ended:
        raise TimeoutError(f"it took longer than {deadline.seconds:g} s")
    result, error = ended[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # not None if `work` returned


class DeadlineSocket:
    """A socket for http.client whose reads and writes together end by the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            self._sock.settimeout(self._deadline.remaining())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, mode: str = "rb", *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _DeadlineReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.remaining())
        return self._sock.recv_into(buffer)
