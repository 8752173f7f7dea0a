"""Calls an ASGI application in this process, without a server. A file of its own, because it imports nothing large."""

from __future__ import annotations

from typing import Any

from benchmarks.http import BODY

HEADERS = [(b"host", b"a"), (b"authorization", b"Bearer account-7"), (b"content-type", b"application/json")]


async def call(app: Any, key: str | None) -> int:
    """One request; returns the status of its answer."""
    headers = [*HEADERS, (b"idempotency-key", key.encode())] if key else HEADERS
    scope = {"type": "http", "method": "POST", "path": "/payments", "raw_path": b"/payments", "query_string": b""}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1), "root_path": "", "http_version": "1.1", "scheme": "http"}
    status = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status
