"""A payment provider that knows nothing of retrysafe: it remembers keys for a while, and charges, declines or fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.testing.simulation.chance import draw_four
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import MAX_HELD_SECONDS, ConnectionRefused, Network, Unanswered

PROVIDER = 0x5EED_0F_7E_9A_0FF
"""So that the provider's chance is not that of the messages."""


class Charge(NamedTuple):
    """One entry of the provider's ledger: `kind` is `charge` or `refund`."""

    kind: str
    purchase: str
    number: int
    at: float
    key: str
    amount: int = 1


class ProviderError(ConnectionError):
    """The provider answered 5xx. It may have charged all the same."""


DECLINED = 0
"""In place of the number of a charge: the provider said no, and no retry changes that."""


class SimulatedProvider:
    """`memory`: seconds for which a key is recognised; afterwards the same key is a new charge. `errors`: the share of
    requests that are answered with 5xx. `declines`: the purchases that are declined."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        history: History,
        host: Host,
        memory: float = 86_400.0,
        errors: float = 0.0,
        declines: Callable[[str], bool] = lambda purchase: False,
        seed: int = 0,
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
        self._errors, self._declines, self._seed = errors, declines, seed
        self.failed = 0
        """How many requests were answered with 5xx."""
        self._requests = 0

    @property
    def key_life(self) -> float:
        """For how long a caller may send a key again: what is held back on its way still meets the memory."""
        return self.memory - MAX_HELD_SECONDS - 30.0

    async def charge(
        self,
        purchase: str,
        key: str = "",
        *,
        kind: str = "charge",
        seconds: float = 20.0,
        amount: int = 1,
        in_step: bool = True,
    ) -> int:
        """The number of the charge, or DECLINED. With a key the provider recognises a repetition; a key that begins
        with `own-` it keeps for good. `in_step`: a foreign step declares these `seconds`; a handler that calls outside
        of any step has declared nothing. Raises an OSError where the outcome is not known."""
        self.on_send(purchase, kind, seconds if in_step else 0.0)
        try:
            number: int = await self._network.call(
                self.host,
                lambda: self._answer(kind, purchase, key, amount),
                seconds=seconds,
                what=kind,
                about=purchase,
                once=not key,  # nobody but us can tell two unkeyed charges apart: a doubled one is the network's
            )
        except Unanswered as error:
            raise TimeoutError(str(error)) from None
        except ConnectionRefused as error:
            raise ConnectionError(str(error)) from None
        return number

    async def look_up(self, purchase: str, kind: str = "charge", *, seconds: float = 20.0) -> int | None:
        """The number of a charge that was booked; None if there is none so far. Raises an OSError as `charge` does."""

        def search() -> int | None:
            return next((each.number for each in self.ledger if (each.purchase, each.kind) == (purchase, kind)), None)

        try:
            found: int | None = await self._network.call(
                self.host, search, seconds=seconds, what=f"look up {kind}", about=purchase
            )
        except Unanswered as error:
            raise TimeoutError(str(error)) from None
        except ConnectionRefused as error:
            raise ConnectionError(str(error)) from None
        return found

    def _answer(self, kind: str, purchase: str, key: str, amount: int) -> int:
        self._requests += 1
        fails, late, _, _ = draw_four(self._seed ^ PROVIDER, self._requests)
        failing = fails < self._errors and not self._network.healed
        if failing:
            self.failed += 1
            self.history.note(self._loop.now, self.host.name, "5xx", purchase, charged=late < 0.5)
        if failing and late >= 0.5:
            raise ProviderError("the provider answered 503")
        if kind == "charge" and self._declines(purchase):
            self.history.note(self._loop.now, self.host.name, "declined", purchase)
            return DECLINED
        number = self._book(kind, purchase, key, amount)
        if failing:
            raise ProviderError("the provider charged, and then answered 500")
        return number

    def _book(self, kind: str, purchase: str, key: str, amount: int) -> int:
        known = self._known.get(key) if key else None
        if known is not None and (self._loop.now - known.at < self.memory or key.startswith("own-")):
            if (known.kind, known.purchase, known.amount) != (kind, purchase, amount):
                self.misused.append(f"the key of {known.kind} {known.number} was sent with another {kind}")
            return known.number
        made = Charge(kind, purchase, len(self.ledger) + 1, self._loop.now, key, amount)
        self.ledger.append(made)
        if key:
            self._known[key] = made
        self.history.note(self._loop.now, self.host.name, kind, purchase, number=made.number, key=key[:8])
        return made.number

    def refund_by_hand(self, purchase: str) -> None:
        """A person presses the button on the provider's own pages."""
        self._book("refund", purchase, f"own-{purchase}-by-hand", 1)

    @property
    def now(self) -> float:
        """True time, in seconds since the start."""
        return self._loop.now

    def count(self, purchase: str, kind: str = "charge") -> int:
        return sum(entry.purchase == purchase and entry.kind == kind for entry in self.ledger)

    def find(self, purchase: str, kind: str = "charge") -> list[dict[str, Any]]:
        """What a person sees who looks at the provider's own pages."""
        return [entry._asdict() for entry in self.ledger if entry.purchase == purchase and entry.kind == kind]
