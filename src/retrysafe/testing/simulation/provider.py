"""A payment provider that knows nothing of retrysafe: it remembers keys for a while, and charges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import Network, Refused, Unanswered


class Charge(NamedTuple):
    """One entry of the provider's ledger: `kind` is `charge` or `refund`."""

    kind: str
    purchase: str
    number: int
    at: float
    key: str
    amount: int = 1


class Declined(Exception):
    """The provider said no: nothing was charged, and no retry changes that."""


class SimulatedProvider:
    """`memory`: seconds for which a key is recognised; afterwards the same key is a new charge."""

    def __init__(
        self, loop: SimulatedLoop, network: Network, history: History, host: Host, memory: float = 86_400.0
    ) -> None:
        self.host = host
        self.ledger: list[Charge] = []
        self.memory = memory
        self.on_send: Callable[[str, str, float], None] = lambda purchase, kind, seconds: None
        """Called at the sender, just before each message to the provider (`watch.py`)."""
        self.misused: list[str] = []
        """Keys that were sent with another request than at first. A real provider would refuse them."""
        self._loop, self._network, self.history = loop, network, history
        self._known: dict[str, Charge] = {}

    async def charge(
        self, purchase: str, key: str = "", *, kind: str = "charge", seconds: float = 20.0, amount: int = 1
    ) -> int:
        """The number of the charge. With a key the provider recognises a repetition. Raises TimeoutError where the
        outcome is not known."""
        self.on_send(purchase, kind, seconds)
        try:
            number: int = await self._network.call(
                self.host,
                lambda: self._book(kind, purchase, key, amount),
                seconds=seconds,
                what=kind,
                about=purchase,
                once=not key,  # nobody but us can tell two unkeyed charges apart: a doubled one is the network's
            )
        except Unanswered as error:
            raise TimeoutError(str(error)) from None
        except Refused as error:
            raise ConnectionError(str(error)) from None
        return number

    async def look_up(self, purchase: str, *, seconds: float = 20.0) -> int | None:
        """The number of the charge of a purchase, if there is one. Raises TimeoutError or ConnectionError."""

        def read_ledger() -> int | None:
            return next((entry.number for entry in self.ledger if entry.purchase == purchase), None)

        try:
            number: int | None = await self._network.call(
                self.host, read_ledger, seconds=seconds, what="look up", about=purchase
            )
        except Unanswered as error:
            raise TimeoutError(str(error)) from None
        except Refused as error:
            raise ConnectionError(str(error)) from None
        return number

    def _book(self, kind: str, purchase: str, key: str, amount: int) -> int:
        known = self._known.get(key) if key else None
        if known is not None and self._loop.now - known.at < self.memory:
            if (known.kind, known.purchase, known.amount) != (kind, purchase, amount):
                self.misused.append(f"the key of {known.kind} {known.number} was sent with another {kind}")
            return known.number
        made = Charge(kind, purchase, len(self.ledger) + 1, self._loop.now, key, amount)
        self.ledger.append(made)
        if key:
            self._known[key] = made
        self.history.note(self._loop.now, self.host.name, kind, purchase, number=made.number, key=key[:8])
        return made.number

    @property
    def now(self) -> float:
        """True time, in seconds since the start."""
        return self._loop.now

    def count(self, purchase: str, kind: str = "charge") -> int:
        return sum(entry.purchase == purchase and entry.kind == kind for entry in self.ledger)

    def find(self, purchase: str, kind: str = "charge") -> list[dict[str, Any]]:
        """What a person sees who looks at the provider's own pages."""
        return [entry._asdict() for entry in self.ledger if entry.purchase == purchase and entry.kind == kind]
