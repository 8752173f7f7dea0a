"""A sender of webhooks as the specification describes it: signed, sent again by a schedule of days, with a new time.

It knows nothing of retrysafe. It counts an event as delivered when it has read a 2xx. Some seeds make it deaf: its
receiver's answers do not arrive for hours or days, so that it sends events again that were handled long ago.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from retrysafe.errors import RetrySafeError
from retrysafe.testing.simulation.hosts import WALL_START_SECONDS
from retrysafe.testing.simulation.network import ConnectionRefused, Unanswered
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.webhooks.schedules import STANDARD

if TYPE_CHECKING:
    from retrysafe.testing.simulation.fleet import Fleet

SECRET = b"a secret of thirty-two bytes, ok"
ENTRY = "webhook"
"""The entry of the application that takes deliveries: `(headers, body) -> status`."""
HOUR = 3600.0


class Sent(NamedTuple):
    """One delivery, and the status that the receiver answered; 0 if the sender saw none."""

    event: str
    at: float
    status: int


class WebhookSender:
    name = "sender"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("sender")
        self.sent: list[Sent] = []
        chance = stage.draw("webhooks")
        self.events = [f"event-{number + 1}" for number in range(chance.choice((1, 1, 2)))]
        self.given_up: list[str] = []
        self.deaf_until = chance.choice((0.0, 0.0, 0.0, 2 * HOUR, 30 * HOUR, 70 * HOUR))
        if not stage.plan.patient:  # days of a worker that looks every minute take longer than all the rest
            self.deaf_until = min(self.deaf_until, 2 * HOUR)
        self._is_attacked = stage.draw("forger").choice((False, False, True))
        self.next_act = 0.0
        self._stage, self._chance = stage, chance
        self._open = len(self.events)

    def start(self, fleet: Fleet) -> None:
        for event in self.events:
            self.host.run_inside(self._stage.loop.create_task, self._send_until_told(fleet, event))

    def is_settled(self) -> bool:
        return self._open == 0

    def read_clock(self) -> float:
        """The true time: hosts that take webhooks have to have it, to five minutes (S19)."""
        return WALL_START_SECONDS + self._stage.now

    async def _forge(self, fleet: Fleet, event: str) -> None:
        """Somebody who knows the id of an event, and not the secret, sends it first (S21)."""
        with suppress(Unanswered, ConnectionRefused, RetrySafeError, OSError):
            headers = sign(event, self.read_clock(), b"another body")
            await fleet.call(fleet.apps[0], ENTRY, headers, b"{}", seconds=5.0, what="POST forged webhook", about=event)

    async def _send_until_told(self, fleet: Fleet, event: str) -> None:
        if self._is_attacked:
            await self._forge(fleet, event)
        await asyncio.sleep(self._chance.uniform(0.0, 5.0))
        for delay in (*STANDARD.delays, None):
            copies = 2 if self._chance.random() < 0.1 else 1
            answers = await asyncio.gather(*(self._send(fleet, event) for _ in range(copies)))
            if any(200 <= status < 300 for status in answers):
                self._open -= 1
                return
            if delay is not None:
                pause = delay * self._chance.uniform(0.9, 1.1)
                self.next_act = self._stage.now + pause
                await asyncio.sleep(pause)
        self.given_up.append(event)
        self._open -= 1

    async def _send(self, fleet: Fleet, event: str) -> int:
        """The status, as the sender sees it."""
        body = json.dumps({"type": "order.paid", "data": {"order": event}}).encode()
        status = 0
        try:
            status = await fleet.call(
                self._chance.choice(fleet.apps),
                ENTRY,
                sign(event, self.read_clock(), body),
                body,
                seconds=STANDARD.answer_within,
                what="POST webhook",
                about=event,
            )
        except (Unanswered, ConnectionRefused, RetrySafeError, OSError):
            status = 0
        heard = 0 if self._stage.now < self.deaf_until else status
        self._stage.note(self.host.name, "told", event, status=heard, answered=status)
        self.sent.append(Sent(event, self._stage.now, heard))
        return heard


def sign(event: str, now: float, body: bytes) -> list[tuple[str, str]]:
    """The headers of Standard Webhooks 1.0."""
    stamp = str(int(now))
    signed = hmac.new(SECRET, f"{event}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(signed).decode()}"
    return [("webhook-id", event), ("webhook-timestamp", stamp), ("webhook-signature", signature)]
