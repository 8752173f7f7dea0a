"""The writer thread of the async store, and how an event loop calls it.

This is not an executor: an executor makes two futures per call and chains them, and with one caller the way to the
thread and back is what a write costs besides the disk. Here a call goes into a queue, and its result into the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")
WriterCall = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Writer:
    """One daemon thread, started at first use. It runs calls one after the other, in their order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[WriterCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[..., R], *args: Any) -> asyncio.Future[R]:
        """Run a function in the thread. A call runs even if its caller is cancelled: it may be on the disk already."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run_calls, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._calls.put((loop, future, function, args))
        return future

    def stop(self) -> None:
        """End the thread after all calls before this one. The next call starts another thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread, self._calls = None, SimpleQueue()


def _run_calls(calls: SimpleQueue[WriterCall | None]) -> None:
    while (call := calls.get()) is not None:
        loop, future, function, args = call
        end: Callable[[asyncio.Future[Any], Any], None]
        try:
            end, result = _succeed, function(*args)
        except BaseException as error:
            end, result = _fail, error
        try:
            loop.call_soon_threadsafe(end, future, result)
        except RuntimeError:  # the loop was closed meanwhile: nothing waits for the result
            continue
        finally:
            del call, future, function, args, result  # the thread must not keep the last call alive while it waits


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
