"""A receiver as an ASGI application, for any path of any ASGI framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from retrysafe.web import problems
from retrysafe.web.asgi_answer import AnswerSender, Message, Send
from retrysafe.web.capture import Response
from retrysafe.web.exchange import BodyRefused
from retrysafe.webhooks import replies
from retrysafe.webhooks.receiver import Receiver
from retrysafe.webhooks.schemes.headers import HeaderPairs

BODY_TIMEOUT_SECONDS = 30.0
"""The time for the whole body (S23). Nothing is claimed before the body is complete."""

Receive = Callable[[], Awaitable[Message]]


class WebhookEndpoint:
    """The ASGI application: `Route("/webhooks/stripe", endpoint(receiver))`. It can be mounted under a prefix too, but
    some routers then redirect a URL without a trailing slash, and senders do not follow redirects."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _run_lifespan(receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"a webhook endpoint speaks HTTP, not {scope['type']!r}")
        return await AnswerSender.transmit(send, await self._respond(scope, receive))

    async def _respond(self, scope: MutableMapping[str, Any], receive: Receive) -> Response:
        if scope["method"] != "POST":
            return replies.wrong_method_response()
        return await receive_request(self.receiver, scope["headers"], receive)


def endpoint(receiver: Receiver) -> WebhookEndpoint:
    return WebhookEndpoint(receiver)


async def receive_request(receiver: Receiver, headers: HeaderPairs, receive: Receive) -> Response:
    """Read the request's body and hand the delivery to the receiver."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            body = await read_body(receive, receiver.policy.max_body)
    except BodyRefused as refused:
        return replies.refused_body_response(refused.problem)
    except TimeoutError:
        return replies.refused_body_response(problems.TOO_SLOW)
    return await receiver.areceive(headers, body)


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises BodyRefused if it is larger than `limit` or the client disconnects."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise BodyRefused(problems.UNREADABLE)
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise BodyRefused(problems.TOO_LARGE)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _run_lifespan(receive: Receive, send: Send) -> None:
    """Answer the lifespan messages: a receiver has nothing to start or stop."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
