"""The common base of the worker's services: their effects, the two loops that drive them, and their namespaces.

A service is written once, as a generator that does no I/O of its own. `run` drives it in a thread, `arun` on an event
loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from retrysafe.core.keys import observed_namespace
from retrysafe.core.ops import Op
from retrysafe.engine import drive
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe

R = TypeVar("R")

ShouldStop = Callable[[], bool]
"""Returns True if the worker is to stop. Called between two pieces of work."""


@dataclass(frozen=True, slots=True, eq=False)
class CallUserFunction:
    """Call a function of the user's. On an event loop a plain function is called in a thread, because it may block."""

    function: Callable[[], Any]
    is_async: bool


@dataclass(frozen=True, slots=True, eq=False)
class RawOperation:
    """A store operation whose reply is not decrypted."""

    op: Op[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Sleep:
    """Pause the service."""

    seconds: float


WorkerFlow = Generator[Op[Any] | CallUserFunction | RawOperation | Sleep, Any, R]


def never_stop() -> bool:
    return False


def run(safe: RetrySafe, flow: WorkerFlow[R], sleep: Callable[[float], object] = time.sleep) -> R:
    """Drive a flow in this thread. Awaitables are awaited on the background loop."""

    def perform(effect: Any) -> Any:
        if isinstance(effect, Op):
            return safe.execute(effect)
        if isinstance(effect, RawOperation):
            return safe.store.execute(effect.op)
        if isinstance(effect, Sleep):
            return sleep(effect.seconds)
        result = effect.function()
        return wait_for(result) if inspect.isawaitable(result) else result

    return drive.run(flow, perform)


async def arun(safe: RetrySafe, flow: WorkerFlow[R]) -> R:
    """Drive a flow on the running loop. Awaitables are awaited here, where the application's own pools and clients
    live."""

    async def perform(effect: Any) -> Any:
        if isinstance(effect, Op):
            return await safe.aexecute(effect)
        if isinstance(effect, RawOperation):
            return await safe.async_store.execute(effect.op)
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        result = effect.function() if effect.is_async else await asyncio.to_thread(effect.function)
        return await result if inspect.isawaitable(result) else result

    return await drive.arun(flow, perform)


def is_async(function: Callable[..., Any]) -> bool:
    """True if calling the function returns an awaitable: `async def`, or an object whose `__call__` is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


# Namespaces: an application works only on records and jobs of its own namespace (I34).


def owned_namespaces(safe: RetrySafe) -> tuple[str, str]:
    """The namespace of the application, and that of its observe mode."""
    return safe.namespace, observed_namespace(safe.namespace)


def is_sole_application(namespace: str, names: Iterable[str]) -> bool:
    """True if the store has no other namespaces. Then jobs without a namespace belong to this application."""
    return set(names) <= {namespace, observed_namespace(namespace)}
