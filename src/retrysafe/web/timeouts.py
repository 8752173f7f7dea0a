"""A timeout around an awaitable that was begun already and has to wait.

A request's body has usually arrived together with its headers, so `receive()` returns without waiting, and no timer is
set (`AsgiBody.read_all` in web/asgi.py). `asyncio.timeout` around it would cost more than reading the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def finish_until(deadline: float, steps: Generator[Any, Any, T], waits_for: Any) -> T:
    """The result of an awaitable whose caller has taken the first of its steps (`AsgiBody.read_all`), and which has to
    wait. Raises TimeoutError if the loop's clock passes `deadline` first."""
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
