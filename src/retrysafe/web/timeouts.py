"""Awaiting something that is mostly there already, without paying for a timer.

A request's body has usually arrived with its head, so `receive()` answers without waiting. `asyncio.timeout` around it
would cost more than reading the body does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def wait_until(deadline: float, awaitable: Awaitable[T]) -> T:
    """Its result; TimeoutError when the loop's clock passes `deadline` first. No timer unless it has to wait."""
    steps = awaitable.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what the awaitable returns
    async with asyncio.timeout_at(deadline):
        return await _Resumed(steps, waits_for)


class _Resumed(Generic[T]):
    """What is left of an awaitable that has been taken to its first stop."""

    def __init__(self, steps: Generator[Any, Any, T], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    reply = yield waits_for
                except BaseException as error:
                    waits_for = self._steps.throw(error)
                else:
                    waits_for = self._steps.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # what the awaitable returns
