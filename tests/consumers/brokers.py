"""The four brokers behind one face, so that one story is told of all of them; used by the tests and by their child
processes. Each `Broker` has one queue (subject, stream, topic) of its own, and a file of its own: a child imports only
the client it uses."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, NamedTuple

from retrysafe.consumers import Inbox

SOON = 0.5
"""Seconds after which a broker brings back what nobody acknowledged. Too early does no harm: that is the point."""
AT_ONCE = 4


class Sent(NamedTuple):
    """A message to send; without an id if there is none."""

    id: str
    body: bytes


class Letter(NamedTuple):
    body: bytes
    reason: str


class Broker(ABC):
    """One queue. `url` and `name` say where; a child process makes another of the same."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        self.kind = kind
        self.url = url
        self.name = name

    @abstractmethod
    async def make(self) -> None:
        """Create the queue."""

    @abstractmethod
    async def send(self, messages: Sequence[Sent]) -> None: ...

    @abstractmethod
    def consume(self, inbox: Inbox) -> Any:
        """An async context in which messages are consumed: it gives the task that does."""

    @abstractmethod
    async def left(self) -> int:
        """How many messages are not acknowledged, while nobody consumes."""

    @abstractmethod
    async def dead(self) -> list[Letter]:
        """Take what is in the dead letters."""


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


KINDS = ("rabbitmq", "nats", "redis", "kafka")


def broker_of(kind: str, url: str, name: str) -> Broker:
    made: Broker = import_module(f"tests.consumers.on_{kind}").OwnBroker(kind, url, name)
    return made
