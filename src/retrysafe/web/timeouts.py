"""A timeout that costs nothing if the awaitable is ready: the timer is set only when it has to wait.

A request's body has usually arrived together with its headers, so `receive()` returns without waiting.
`asyncio.timeout` around it would cost more than reading the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def wait_until(deadline: float, awaitable: Awaitable[T]) -> T:
    """The awaitable's result. Raises TimeoutError if the loop's clock passes `deadline` first."""
    steps = awaitable.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what the awaitable returns
    async with asyncio.timeout_at(deadline):
        return await _Resumed(steps, waits_for)


class _Resumed(Generic[T]):
    """The rest of an awaitable that was run to its first suspension."""

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
