"""The receiver without a framework, as ASGI and as WSGI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrysafe.webhooks import asgi as on_asgi
from retrysafe.webhooks import wsgi as on_wsgi
from tests.webhooks.apps.hooks import stripe

_asgi = on_asgi.endpoint(stripe)
_wsgi = on_wsgi.endpoint(stripe)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and scope["path"] == "/health":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        return await send({"type": "http.response.body", "body": b""})
    return await _asgi(scope, receive, send)


def wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/health":
        start_response("200 OK", [("Content-Length", "0")])
        return []
    return _wsgi(environ, start_response)
