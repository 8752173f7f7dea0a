"""A message broker that delivers at least once: it loses acknowledgements, delivers again, and not in order.

It knows nothing of retrysafe. A producer publishes over the network. Each message goes to one of the application's
hosts, as an entry of the application (`AppHost.entries`), until that host has said that it is done with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.errors import RetrySafeError
from retrysafe.testing.simulation.network import ConnectionRefused, Unanswered
from retrysafe.testing.simulation.stage import SimulationStage

if TYPE_CHECKING:
    from retrysafe.testing.simulation.fleet import Fleet

PUBLISH_SECONDS = 5.0
VISIBILITY_SECONDS = 45.0
"""A message that was not acknowledged for this long is delivered again."""
AGAIN_SECONDS = 5.0
MAX_DELIVERIES = 300


class Published(NamedTuple):
    """What a producer sent: `topic` is the entry that takes it."""

    id: str
    topic: str
    body: bytes
    about: str


class Consumed(NamedTuple):
    """What the consumer says of a delivery: `seconds` until the next one, or None; `dead`: put it aside."""

    seconds: float | None = None
    dead: str = ""


@dataclass(slots=True)
class Delivery:
    """A message under way, and how often it was delivered."""

    message: Published
    count: int = 0
    failures: int = 0


@dataclass(slots=True)
class BrokerLog:
    """What the broker has seen, for the checks."""

    published: list[Published] = field(default_factory=list)
    dead: list[tuple[Published, str]] = field(default_factory=list)


class SimulatedBroker:
    """One broker with one queue for each entry of the application."""

    name = "broker"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("broker")
        self.log = BrokerLog()
        self._stage = stage
        self._chance = stage.draw("broker")
        self._again = stage.draw("redelivery").choice((0.0, 0.0, 0.3))
        """How many of the messages that are done are delivered once more."""
        self._fleet: Fleet | None = None
        self._waiting = 0

    def start(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def is_settled(self) -> bool:
        return self._waiting == 0

    async def publish(self, message: Published) -> None:
        """For producers. Raises TimeoutError or ConnectionError: then it may have arrived all the same."""
        try:
            await self._stage.network.call(
                self.host,
                lambda: self._accept(message),
                seconds=PUBLISH_SECONDS,
                what=f"publish {message.topic}",
                about=message.about,
            )
        except Unanswered as error:
            raise TimeoutError(str(error)) from None
        except ConnectionRefused as error:
            raise ConnectionError(str(error)) from None

    # At the broker -----------------------------------------------------------------------------------

    def _accept(self, message: Published) -> None:
        """Each message that arrives is one of its own, also if its producer means the same."""
        self.log.published.append(message)
        self._stage.note(self.host.name, "accepted", message.about, topic=message.topic, id=message.id[:8])
        self._schedule(Delivery(message), self._chance.choice((0.0, 0.0, 1.0, 30.0)) * self._chance.random())

    def _schedule(self, delivery: Delivery, seconds: float) -> None:
        self._waiting += 1
        stage = self._stage
        stage.loop.call_at_true_time(stage.now + seconds, self._begin, delivery, host=self.host)

    def _begin(self, delivery: Delivery) -> None:
        self._stage.loop.create_task(self._deliver(delivery))

    async def _deliver(self, delivery: Delivery) -> None:
        consumed = await self._hand_over(delivery)
        message = delivery.message
        self._waiting -= 1
        if consumed.dead or delivery.count >= MAX_DELIVERIES:
            self.log.dead.append((message, consumed.dead or "delivered too often"))
            self._stage.note(self.host.name, "dead letter", message.about, why=consumed.dead[:60])
        elif consumed.seconds is not None:
            self._schedule(delivery, consumed.seconds)
        elif self._chance.random() < self._again:
            self._schedule(Delivery(message, 1), self._chance.random() * 60.0)

    async def _hand_over(self, delivery: Delivery) -> Consumed:
        """Deliver once. Whoever does not answer in time has not acknowledged it."""
        assert self._fleet is not None, "the fleet has started"
        delivery.count += 1
        message, app = delivery.message, self._chance.choice(self._fleet.apps)
        try:
            consumed: Any = await self._fleet.call(
                app,
                message.topic,
                message,
                delivery,
                seconds=VISIBILITY_SECONDS,
                what=f"deliver {message.topic}",
                about=message.about,
            )
        except (Unanswered, ConnectionRefused):
            return Consumed(AGAIN_SECONDS * self._chance.random())
        except (RetrySafeError, OSError):
            delivery.failures += 1
            return Consumed(AGAIN_SECONDS)
        assert isinstance(consumed, Consumed)
        return consumed
