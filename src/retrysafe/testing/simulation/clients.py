"""Clients that retry as our documents say: the same key again, after growing pauses, until the answer is final."""

from __future__ import annotations

import asyncio

from retrysafe.errors import RetrySafeError
from retrysafe.testing.simulation.application import ClientReply, Purchase
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import HOST
from retrysafe.testing.simulation.network import Refused, Unanswered
from retrysafe.testing.simulation.stage import Stage

CLIENT_TIMEOUT_SECONDS = 30.0
MAX_ATTEMPTS = 200


def start_clients(
    stage: Stage, fleet: Fleet, purchases: list[Purchase], replies: dict[str, list[ClientReply]]
) -> list[asyncio.Task[None]]:
    """The clients of all purchases, each on a host of its own. What each is told in the end goes into `replies`."""
    clients = []
    for purchase in purchases:
        for number in range(stage.plan.senders):
            host = stage.add_host(f"client-{purchase.name}{'abc'[number]}")
            told = replies.setdefault(purchase.name, [])
            clients.append(host.run_inside(stage.loop.create_task, send_until_told(stage, fleet, purchase, told)))
    return clients


async def send_until_told(stage: Stage, fleet: Fleet, purchase: Purchase, replies: list[ClientReply]) -> None:
    me = HOST.get().name
    chance = stage.draw(me)
    await asyncio.sleep(chance.uniform(0.0, 5.0))
    for attempt in range(MAX_ATTEMPTS):
        try:
            reply = await fleet.send(chance.choice(fleet.apps), purchase, seconds=CLIENT_TIMEOUT_SECONDS)
        except (Unanswered, Refused, RetrySafeError, OSError):
            reply = ClientReply(503, b"")
        stage.note(me, "told", purchase.name, status=reply.status, body=reply.body)
        if reply.is_final or (reply.status == 500 and b"unknown" not in reply.body):
            replies.append(reply)
            return
        await asyncio.sleep(min(60.0, 0.5 * 2**attempt) * chance.uniform(0.5, 1.0))
