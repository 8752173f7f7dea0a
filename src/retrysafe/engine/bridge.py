"""Awaits from a thread: one event loop in the background, for sync workers that call async functions.

No hot path uses it: the switch between threads costs more than the work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")


class BackgroundLoop:
    """A loop in a daemon thread, started at first use and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, work: Awaitable[R]) -> R:
        return asyncio.run_coroutine_threadsafe(_await_work(work), self._ensure_loop()).result()

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="retrysafe-background", daemon=True).start()
            return self._loop


async def _await_work(work: Awaitable[R]) -> R:
    return await work


_background = BackgroundLoop()


def wait_for(work: Awaitable[R]) -> R:
    """The result of an awaitable, from a thread that has no loop."""
    return _background.run(work)
