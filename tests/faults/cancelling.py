"""Cancel a coroutine at the n-th place where it gives up control, as the event loop would."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

R = TypeVar("R")

NEVER = 0
TRIES = 3

MOST = 500
"""Nothing waits this often; a story that never ends is a bug, not a long test."""


class Tally:
    """How often the coroutine gave up control."""

    def __init__(self) -> None:
        self.awaits = 0


@types.coroutine
def cancelled_at(
    coroutine: Coroutine[Any, Any, R], number: int, tally: Tally, *, again: bool = False
) -> Generator[Any, Any, R]:
    """Await `coroutine` in the current task, and cancel that task the `number`-th time it waits for something.

    `again`: the canceller insists, and cancels at every later place too.
    """
    task = asyncio.current_task()
    assert task is not None
    step: Any = lambda: coroutine.send(None)  # noqa: E731
    while True:
        try:
            waited_for = step()
        except StopIteration as done:
            result: R = done.value
            return result
        tally.awaits += 1
        if tally.awaits == number or (again and number != NEVER and tally.awaits > number):
            # Asked for while the task runs, it is delivered where the task waits next: right here.
            task.cancel()
        try:
            value = yield waited_for
        except BaseException as error:
            step = lambda error=error: coroutine.throw(error)  # noqa: E731
        else:
            step = lambda value=value: coroutine.send(value)  # noqa: E731


async def attempt(coroutine: Coroutine[Any, Any, R], number: int, *, again: bool = False) -> tuple[str, R | None, int]:
    """Run in a task of its own; `cancelled` or `done`, the result, and how many times it waited."""
    tally = Tally()

    async def body() -> R:
        return await cancelled_at(coroutine, number, tally, again=again)

    task = asyncio.create_task(body())
    try:
        return "done", await task, tally.awaits
    except asyncio.CancelledError:
        assert task.cancelled()
        return "cancelled", None, tally.awaits


async def at_every_await(story: Callable[[int], Awaitable[int]]) -> None:
    """Run `story(n)` for n = 1, 2, … until it ends before the n-th place; it returns how often it waited.

    How often it waits depends on what the server was quick with, so each n is tried some times.
    """
    number = 1
    while max([await story(number) for _ in range(TRIES)]) >= number:
        number += 1
        assert number < MOST, "the story never ends"
    assert number > 1, "it was never cancelled at all"
