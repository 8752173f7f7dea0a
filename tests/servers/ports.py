"""Free ports on the loopback address, each given to one process only.

Asking the kernel for "any free port" and closing the socket again leaves a moment in which another process is given
the same one, as a server's or as the near end of a connection; then a test talks to somebody else's server. So ports
come from below the range the kernel hands out by itself, and each is locked for as long as the asking process lives.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 15000, 32000
_held: list[int] = []
"""File descriptors: a lock ends with the process, however it ends."""


def free_port() -> int:
    """A port nobody listens on and no other test process was given."""
    start = random.SystemRandom().randrange(FIRST, LAST)  # a test suite seeds the other one the same everywhere
    for port in (*range(start, LAST), *range(FIRST, start)):
        if _reserved(port):
            return port
    raise OSError(f"no free port between {FIRST} and {LAST}: end the test servers that are still running")


def _reserved(port: int) -> bool:
    lock = os.open(_locks() / str(port), os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        return False
    _held.append(lock)
    return True


def _locks() -> Path:
    folder = Path(tempfile.gettempdir()) / f"retrysafe-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder
