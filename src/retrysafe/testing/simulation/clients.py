"""Clients that retry as our documents say, with the code of `retrysafe.client`: the same key again, until the answer is
final. A call that ends without one is made again later, by the program that made it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from retrysafe.client.decide import AnsweredAttempt, AttemptResult, FailedAttempt, Reach
from retrysafe.client.flow import ClientCall, RequestInfo, adrive, build_client_state, call_flow
from retrysafe.client.settings import Clock, Retries
from retrysafe.client.unanswered import UnansweredOperation
from retrysafe.testing.simulation.application import ClientReply, Purchase
from retrysafe.testing.simulation.fleet import Fleet
from retrysafe.testing.simulation.hosts import Host, current_host
from retrysafe.testing.simulation.network import ConnectionRefused, Unanswered
from retrysafe.testing.simulation.stage import SimulationStage

CLIENT_TIMEOUT_SECONDS = 30.0
MAX_CALLS = 200
RETRIES = Retries()


class Clients:
    """The clients of one application, each on a host of its own."""

    def __init__(self, stage: SimulationStage, fleet: Fleet, prefix: str = "") -> None:
        self.hosts: list[Host] = []
        self._stage, self._fleet, self._prefix = stage, fleet, prefix
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, purchases: list[Purchase], replies: dict[str, list[ClientReply]]) -> None:
        for purchase in purchases:
            for number in range(self._stage.plan.senders):
                host = self._stage.add_host(f"{self._prefix}client-{purchase.name}{'abc'[number]}")
                self.hosts.append(host)
                self._fleet.clients.append(host.name)
                told = replies.setdefault(purchase.name, [])
                self._tasks.append(host.run_inside(self._stage.loop.create_task, self._send_until_told(purchase, told)))

    def list_waiting(self) -> list[asyncio.Task[None]]:
        """The clients that have no final answer yet."""
        return [task for task in self._tasks if not task.done()]

    async def _send_until_told(self, purchase: Purchase, replies: list[ClientReply]) -> None:
        me = current_host().name
        chance = self._stage.draw(me)
        ambient = Clock(wall=time.time, clock=time.monotonic, draw=chance.random, token=lambda: purchase.key)
        state = build_client_state(RETRIES, ambient=ambient)
        # A client that made the key itself may use a new one if nothing happened under the first. A key that two
        # clients share was given to them.
        given = purchase.key if self._stage.plan.senders > 1 else None
        request = RequestInfo("POST", "shop", f"/buy/{purchase.name}", "", "application/json", b"{}", given)
        pending: UnansweredOperation | None = None
        await asyncio.sleep(chance.uniform(0.0, 5.0))
        for again in range(MAX_CALLS):
            transport = ClientTransport(self._stage, self._fleet, purchase, chance)
            call = ClientCall(request, state, pending)
            result = await adrive(call_flow(call), transport)
            if call.settled and not is_unknown(result.attempt):
                assert transport.last is not None
                replies.append(transport.last)
                return
            # What a program does that got no answer: the same operation again, later.
            pending = call.get_unanswered() or pending
            await asyncio.sleep(min(60.0, 2.0 * 2**again) * chance.uniform(0.5, 1.0))


def is_unknown(attempt: AttemptResult) -> bool:
    """Whether the answer was that nobody knows: a person finds out, and the same key is then answered."""
    return isinstance(attempt, AnsweredAttempt) and attempt.status == 500 and b"unknown" in attempt.body


class ClientTransport:
    """Sends one call of a client over the simulated network, each attempt to a host of its own choice."""

    def __init__(self, stage: SimulationStage, fleet: Fleet, purchase: Purchase, chance: Random) -> None:
        self.last: ClientReply | None = None
        self._stage, self._fleet, self._purchase, self._chance = stage, fleet, purchase, chance

    async def send(self, key: str | None) -> AttemptResult:
        purchase, app = self._purchase, self._chance.choice(self._fleet.apps)
        if key != purchase.key:
            purchase = replace(purchase, rotated=key or "")
        self.last = None
        try:
            reply = self.last = await self._fleet.send(app, purchase, seconds=CLIENT_TIMEOUT_SECONDS)
        except Unanswered as error:
            return self._fail(error, "unclear")
        except ConnectionRefused as error:
            return self._fail(error, "unsent")
        except Exception as error:  # of the application: a server answers 500
            self._stage.note(app, "handler failed", purchase.name, error=repr(error))
            reply = self.last = ClientReply(500, b"")
        self._stage.note(current_host().name, "told", purchase.name, status=reply.status, body=reply.body)
        self._fleet.complaints += b"OperationChanged" in reply.body
        headers = dict(reply.headers)
        if reply.stored:
            headers["idempotent-replayed"] = "true"
        return AnsweredAttempt(reply.status, headers, reply.body)

    def _fail(self, error: Exception, reach: Reach) -> FailedAttempt:
        self._stage.note(current_host().name, "got nothing", self._purchase.name, reach=reach)
        return FailedAttempt(error, reach)

    async def discard(self, attempt: AnsweredAttempt) -> None:
        """Nothing is open."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run_blocking(self, function: Callable[[], Any]) -> Any:
        return function()
