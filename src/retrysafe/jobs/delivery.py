"""How a job reaches its queue: the options of its delivery, the delay of a busy job, and a client per event loop.

The options say that a job begins later, goes to another queue, or goes before other jobs. An adapter passes on what its
queue supports. What the queue does not support is refused before anything is claimed, because a job that should run in
an hour must not run now. The options are not part of the job's identity: the same key with another countdown is the
same job.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from retrysafe.errors import InProgress, UsageError
from retrysafe.stores.lifetime import PerLoop

C = TypeVar("C")


class DeliveryOptions(NamedTuple):
    """When and where a job is delivered. None leaves an option to the queue's default."""

    countdown: float | None = None
    """Seconds until the job may begin."""
    queue: str | None = None
    priority: int | None = None
    """The queue defines the scale, and whether a high or a low number goes first."""

    def given_options(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def check_delivery(requested: DeliveryOptions, queue: str, unsupported_options: Mapping[str, str]) -> DeliveryOptions:
    """Raise UsageError for a bad value, or for one of the `unsupported_options`, which each have their reason."""
    countdown, name, priority = requested
    if countdown is not None and not (_is_number(countdown) and 0 <= countdown < math.inf):
        raise UsageError(f"countdown={countdown!r}: give seconds, zero or more")
    if name is not None and not (isinstance(name, str) and name):
        raise UsageError(f"queue={name!r}: give the name of a queue")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise UsageError(f"priority={priority!r}: give a whole number")
    for option, value in requested.given_options().items():
        if option in unsupported_options:
            raise UsageError(f"{option}={value!r}: {queue} cannot do that here: {unsupported_options[option]}")
    return requested


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# A busy job -----------------------------------------------------------------------------------------

MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 5.0
"""Bounds of the delay. The job may end long before its lease lapses, and another look costs little."""


def compute_busy_delay(busy: InProgress) -> float:
    """Seconds until the next delivery of a job that another worker runs. Random, so that retries spread out."""
    return max(MIN_DELAY_SECONDS, min(busy.retry_after, MAX_DELAY_SECONDS)) * random.uniform(0.5, 1.0)


# Clients --------------------------------------------------------------------------------------------


class ClientPerLoop(Generic[C]):
    """One client per event loop, for libraries whose connections belong to the loop that opened them."""

    def __init__(self, make: Callable[[], Awaitable[C]]) -> None:
        self._clients: PerLoop[asyncio.Future[C]] = PerLoop(lambda: asyncio.ensure_future(make()))

    async def get(self) -> C:
        """The running loop's client; made at first use, and made again if making it failed."""
        client = self._clients.get()
        if client.done() and (client.cancelled() or client.exception() is not None):
            self._clients.pop()
            client = self._clients.get()
        # Several callers may wait for one client: cancelling one of them must not cancel the client.
        return await asyncio.shield(client)

    def get_existing(self) -> C | None:
        """The running loop's client, if there is one."""
        client = self._clients.get_existing()
        return client.result() if client is not None and client.done() else None
