"""Waiting for a condition, with a deadline: the only way a test waits for another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what} after {seconds} s"
        time.sleep(0.02)
