"""A receiver as an endpoint of Starlette or FastAPI.

app.post("/webhooks/stripe")(endpoint(receiver))                        # FastAPI
Route("/webhooks/stripe", endpoint(receiver), methods=["POST"])         # Starlette
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from retrysafe.web import problems
from retrysafe.web.exchange import BodyRefused
from retrysafe.webhooks import asgi, replies
from retrysafe.webhooks.receiver import Receiver


def endpoint(receiver: Receiver) -> Callable[[Request], Awaitable[Response]]:
    async def webhook(request: Request) -> Response:
        try:
            async with asyncio.timeout(asgi.BODY_TIMEOUT_SECONDS):
                body = await asgi.read_body(request.receive, receiver.policy.max_body)
        except BodyRefused as refused:
            told = replies.refused_body_response(refused.problem)
        except TimeoutError:
            told = replies.refused_body_response(problems.TOO_SLOW)
        else:
            told = await receiver.areceive(request.headers.raw, body)
        answer = Response(told.body, told.status)
        answer.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.headers]
        return answer

    webhook.__name__ = f"webhook_{receiver.provider}"
    return webhook
