"""A receiver as a Starlette or FastAPI endpoint (one file per framework, imported by its name).

app.post("/webhooks/stripe")(endpoint(receiver))                        # FastAPI
Route("/webhooks/stripe", endpoint(receiver), methods=["POST"])         # Starlette
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from retrysafe.webhooks import asgi
from retrysafe.webhooks.receiver import Receiver


def endpoint(receiver: Receiver) -> Callable[[Request], Awaitable[Response]]:
    async def webhook(request: Request) -> Response:
        captured = await asgi.receive_request(receiver, request.headers.raw, request.receive)
        response = Response(captured.body, captured.status)
        response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in captured.headers]
        return response

    webhook.__name__ = f"webhook_{receiver.provider}"
    return webhook
