"""A service of the worker is told once, as a generator that does no I/O of its own; two small loops carry it out, for
threads and for event loops.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe

R = TypeVar("R")

ShouldStop = Callable[[], bool]
"""Whether the worker was told to stop; asked between two pieces of work."""


@dataclass(frozen=True, slots=True, eq=False)
class CallUserFunction:
    """Call something of the user's. On a loop a plain function is called in a thread, for it may take its time."""

    function: Callable[[], Any]
    is_async: bool


@dataclass(frozen=True, slots=True, eq=False)
class RawOperation:
    """An operation whose reply is wanted as it is stored: nothing in it is opened."""

    op: Op[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Sleep:
    """Do nothing for so many seconds."""

    seconds: float


WorkerFlow = Generator[Op[Any] | CallUserFunction | RawOperation | Sleep, Any, R]


def never_stop() -> bool:
    return False


def run(safe: RetrySafe, story: WorkerFlow[R], rest: Callable[[float], object] = time.sleep) -> R:
    """In this thread. What is awaitable is awaited on the background loop."""

    def perform(effect: Any) -> Any:
        if isinstance(effect, Op):
            return safe.execute(effect)
        if isinstance(effect, RawOperation):
            return safe.store.execute(effect.op)
        if isinstance(effect, Sleep):
            return rest(effect.seconds)
        result = effect.function()
        return wait_for(result) if inspect.isawaitable(result) else result

    try:
        effect = next(story)
        while True:
            try:
                reply = perform(effect)
            except BaseException as error:
                effect = story.throw(error)
            else:
                effect = story.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def arun(safe: RetrySafe, story: WorkerFlow[R]) -> R:
    """On the running loop: what is awaitable is awaited here, where the application's own pools and clients live."""

    async def perform(effect: Any) -> Any:
        if isinstance(effect, Op):
            return await safe.aexecute(effect)
        if isinstance(effect, RawOperation):
            return await safe.async_store.execute(effect.op)
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        result = effect.function() if effect.is_async else await asyncio.to_thread(effect.function)
        return await result if inspect.isawaitable(result) else result

    try:
        effect = next(story)
        while True:
            try:
                reply = await perform(effect)
            except BaseException as error:
                effect = story.throw(error)
            else:
                effect = story.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await: `async def`, or an object whose call is."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
