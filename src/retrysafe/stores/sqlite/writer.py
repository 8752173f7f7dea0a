"""The thread that writes, and how an event loop hands it work.

Not an executor: that makes two futures for each call and ties them together, and at one caller the way to the thread
and back is what a write costs besides the disk. Here a call is put into a queue, and its end is put into the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")
WriterCall = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Writer:
    """One daemon thread, started at first use. Calls are done one after the other, in their order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[WriterCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[..., R], *args: Any) -> asyncio.Future[R]:
        """A caller that is cancelled leaves its call to be done all the same: it may be on the disk already."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run_calls, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._calls.put((loop, future, partial(function, *args)))
        return future

    def stop(self) -> None:
        """After what was called before. The next call starts another thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread, self._calls = None, SimpleQueue()


def _run_calls(calls: SimpleQueue[WriterCall | None]) -> None:
    while (call := calls.get()) is not None:
        loop, future, function = call
        try:
            end = partial(_succeed, future, function())
        except BaseException as error:
            end = partial(_fail, future, error)
        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:  # the loop was closed meanwhile: nobody is left to be told
            continue
        finally:
            del call, future, function, end  # while it waits for the next, the thread must not keep the last alive


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
