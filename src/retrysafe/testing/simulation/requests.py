"""Which request of a client simulated code works for: for the rules about what a client is told.

A request is handled in a task of its own. What that task starts, and what it sends, carries the request's number in a
context variable, so that the provider and the store know it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from retrysafe.testing.simulation.application import ClientReply, Handler, Purchase
from retrysafe.testing.simulation.hosts import Host, current_host


class ClientRequest(NamedTuple):
    """One arrival of one request at one host. A client that sends again makes another one."""

    number: int
    host: str
    purchase: str
    process: Host
    namespace: str = "shop"


REQUEST: ContextVar[ClientRequest | None] = ContextVar("retrysafe_simulated_request", default=None)
"""The request that the current code works for; None in a worker, and for a person."""


def ignore_answer(request: ClientRequest, reply: ClientReply) -> None:
    """Nobody watches."""


class ClientRequestLog:
    """Counts requests, and tells `on_answer` how the application answered each of them."""

    def __init__(self, on_answer: Callable[[ClientRequest, ClientReply], None] = ignore_answer) -> None:
        self._on_answer = on_answer
        self._count = 0

    def wrap(self, host: str, handler: Handler, namespace: str = "shop") -> Handler:
        """The handler, with each call of it counted as a request to this host."""

        async def handle(purchase: Purchase) -> ClientReply:
            self._count += 1
            request = ClientRequest(self._count, host, purchase.name, current_host(), namespace)
            REQUEST.set(request)
            reply = await handler(purchase)
            self._on_answer(request, reply)
            return reply

        return handle
