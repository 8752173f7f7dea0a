"""The four brokers behind one interface, so that each test runs on all of them; the tests and their child processes
use it. Each `Broker` has its own queue (subject, stream, topic), and its own file: a child imports only the client
it uses."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, NamedTuple

from retrysafe.consumers import Inbox

REDELIVERY_SECONDS = 0.5
"""Seconds after which a broker delivers an unacknowledged message again. Too early does no harm, which is what these
tests show."""
AT_ONCE = 4


class Sent(NamedTuple):
    """A message to send; with an empty id if it has none."""

    id: str
    body: bytes


class Letter(NamedTuple):
    body: bytes
    reason: str


class Broker(ABC):
    """One queue. `url` and `name` are its address, so that a child process can make another object for it."""

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
        """An async context in which messages are consumed. Its value is the consuming task."""

    @abstractmethod
    async def left(self) -> int:
        """How many messages are not acknowledged, while no consumer runs."""

    @abstractmethod
    async def dead(self) -> list[Letter]:
        """Take all dead letters."""


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
