"""The application under simulation: what `deploy` is given on each host, and what it gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retrysafe.engine.safe import RetrySafe
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.provider import SimulatedProvider


class ClientReply(NamedTuple):
    """What a client is told: status, headers and body decide whether it sends again (`client/decide.py`)."""

    status: int
    body: bytes
    stored: bool = False
    """This is the stored answer of the key, whatever its status: as the header `Idempotent-Replayed` says it."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Purchase:
    """One thing that a client wants to happen once. `key` is its idempotency key."""

    name: str
    kind: str
    rotated: str = ""
    """A new key, after the application said that nothing happened under the first one."""

    @property
    def key(self) -> str:
        return self.rotated or f"key-{self.name}"


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
