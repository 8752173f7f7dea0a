"""Listeners: wake callers that wait for a key. A store has one listening connection per process or event loop. The
connection is opened when a caller waits, and closed when no caller has waited for a while.

Notifications only save time. A waiting caller reads the key again after its timeout in any case, so a lost
notification, or a listener that cannot connect, delays the caller and does nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

LISTENER_IDLE_SECONDS = 30.0
"""How long a listener stays connected after the last wait. Routes that wait tend to wait again."""

LISTEN_POLL_SECONDS = 0.5
"""How long a listener listens before it checks whether it is still needed."""

OnNotify = Callable[[bytes], None]
ShouldContinue = Callable[[], bool]

_log = logging.getLogger("retrysafe")


class Listener:
    """A listener for threads. `listen(on_notify, should_continue)` connects, calls `on_notify` with the id of each
    notification, and returns when `should_continue()` is false."""

    def __init__(self, listen: Callable[[OnNotify, ShouldContinue], None]) -> None:
        self._listen = listen
        self._lock = threading.Lock()
        self._waiting: dict[bytes, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None
        self._last = 0.0
        self._closed = False
        self.up = threading.Event()
        """Set when the connection listens. Tests wait for it."""

    def wait(self, record_id: bytes, seconds: float) -> None:
        """Wait until the record is settled, or for `seconds`."""
        event = threading.Event()
        with self._lock:
            self._waiting.setdefault(record_id, set()).add(event)
            self._last = time.monotonic()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="retrysafe-listener", daemon=True)
                self._thread.start()
        try:
            event.wait(seconds)
        finally:
            with self._lock:
                self._waiting[record_id].discard(event)
                if not self._waiting[record_id]:
                    del self._waiting[record_id]
                self._last = time.monotonic()

    def close(self) -> None:
        self._closed = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2 * LISTEN_POLL_SECONDS + 1)

    def _run(self) -> None:
        try:
            self._listen(self._on_notify, self._should_continue)
        except Exception as error:
            _log.warning("the listener for notifications stopped, waiting callers poll instead: %s", error)
        finally:
            with self._lock:
                self._thread = None

    def _on_notify(self, record_id: bytes) -> None:
        with self._lock:
            for event in self._waiting.get(record_id, ()):
                event.set()

    def _should_continue(self) -> bool:
        self.up.set()  # the first call comes when the connection listens
        with self._lock:
            return not self._closed and (bool(self._waiting) or time.monotonic() - self._last < LISTENER_IDLE_SECONDS)


class AsyncListener:
    """The async twin of `Listener`, with a task instead of a thread."""

    def __init__(self, listen: Callable[[OnNotify, ShouldContinue], Awaitable[None]]) -> None:
        self._listen = listen
        self._waiting: dict[bytes, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0
        self._closed = False
        self.up = asyncio.Event()
        """Set when the connection listens. Tests wait for it."""

    async def wait(self, record_id: bytes, seconds: float) -> None:
        event = asyncio.Event()
        self._waiting.setdefault(record_id, set()).add(event)
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._run(), name="retrysafe-listener")
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting[record_id].discard(event)
            if not self._waiting[record_id]:
                del self._waiting[record_id]
            self._last = time.monotonic()

    async def aclose(self) -> None:
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        try:
            await self._listen(self._on_notify, self._should_continue)
        except Exception as error:
            _log.warning("the listener for notifications stopped, waiting callers poll instead: %s", error)
        finally:
            self._task = None

    def _on_notify(self, record_id: bytes) -> None:
        for event in self._waiting.get(record_id, ()):
            event.set()

    def _should_continue(self) -> bool:
        self.up.set()  # the first call comes when the connection listens
        return not self._closed and (bool(self._waiting) or time.monotonic() - self._last < LISTENER_IDLE_SECONDS)
