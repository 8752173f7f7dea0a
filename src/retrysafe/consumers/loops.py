"""Consuming until cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn


async def run_forever(run_once: Callable[[], Awaitable[Any]]) -> NoReturn:
    """Again and again. A driver may lose a cancellation (before Python 3.12 `asyncio.wait_for` does, when what it waits
    for has just ended). The task still knows that it was asked, and must not go on for ever."""
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling()
    while True:
        await run_once()
        if task.cancelling() > asked:
            raise asyncio.CancelledError


async def gather_all(works: list[Awaitable[Any]]) -> None:
    """All of them to their end; then what one of them raised. It does not stop the others half way."""
    for ended in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


async def wait_for_any(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
    """Until one of them has ended, or a while."""
    waited = set(tasks)
    if waited:
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(seconds)
