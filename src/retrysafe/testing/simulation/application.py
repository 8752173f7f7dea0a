"""The application under simulation: what `deploy` is given on each host, and what it gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retrysafe.engine.safe import RetrySafe
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.provider import SimulatedProvider


class ClientReply(NamedTuple):
    """What a client is told: the status decides whether it sends again."""

    status: int
    body: bytes

    @property
    def is_final(self) -> bool:
        return self.status < 500 and self.status not in (409, 425, 429)


@dataclass(frozen=True, slots=True)
class Purchase:
    """One thing that a client wants to happen once. `key` is its idempotency key."""

    name: str
    kind: str

    @property
    def key(self) -> str:
        return f"key-{self.name}"


Handler = Callable[[Purchase], Awaitable[ClientReply]]


@dataclass(slots=True)
class AppHost:
    """One host that runs the application, as `deploy` sees it."""

    host: Host
    safe: RetrySafe
    provider: SimulatedProvider
    kinds: frozenset[str]
    """The kinds of purchases that this history has: an application need not declare more than they need."""
    version: int = 1
    """Which version of the application this host runs; a deployment changes it."""
    actors: dict[str, Any] = field(default_factory=dict)
    """The scenario's own actors, by name."""
    entries: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """What actors call on this host beside the handler of purchases: the application puts its functions here, by name
    (`Fleet.call`)."""


Deploy = Callable[[AppHost], Handler]
