"""Clients that retry as our documents say: the same key again, after growing pauses, until the answer is final."""

from __future__ import annotations

import asyncio

from retrysafe.errors import RetrySafeError
from retrysafe.testing.simulation.application import ClientReply, Purchase
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host, current_host
from retrysafe.testing.simulation.network import Refused, Unanswered
from retrysafe.testing.simulation.stage import Stage

CLIENT_TIMEOUT_SECONDS = 30.0
MAX_ATTEMPTS = 200


class Clients:
    """The clients of all purchases, each on a host of its own. What each is told in the end goes into `replies`."""

    def __init__(self, stage: Stage, fleet: Fleet, replies: dict[str, list[ClientReply]]) -> None:
        self.hosts: list[Host] = []
        self._stage, self._fleet, self._replies = stage, fleet, replies
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, purchases: list[Purchase]) -> None:
        for purchase in purchases:
            for number in range(self._stage.plan.senders):
                host = self._stage.add_host(f"client-{purchase.name}{'abc'[number]}")
                self.hosts.append(host)
                self._fleet.clients.append(host.name)
                told = self._replies.setdefault(purchase.name, [])
                self._tasks.append(host.run_inside(self._stage.loop.create_task, self._send_until_told(purchase, told)))

    def list_waiting(self) -> list[asyncio.Task[None]]:
        """The clients that have no final answer yet."""
        return [task for task in self._tasks if not task.done()]

    async def _send_until_told(self, purchase: Purchase, replies: list[ClientReply]) -> None:
        me = current_host().name
        chance = self._stage.draw(me)
        await asyncio.sleep(chance.uniform(0.0, 5.0))
        for attempt in range(MAX_ATTEMPTS):
            app = chance.choice(self._fleet.apps)
            try:
                reply = await self._fleet.send(app, purchase, seconds=CLIENT_TIMEOUT_SECONDS)
            except (Unanswered, Refused, RetrySafeError, OSError):
                reply = ClientReply(503, b"")
            self._stage.note(me, "told", purchase.name, status=reply.status, body=reply.body)
            if reply.is_final or (reply.status == 500 and b"unknown" not in reply.body):
                replies.append(reply)
                return
            await asyncio.sleep(min(60.0, 0.5 * 2**attempt) * chance.uniform(0.5, 1.0))
