"""The ASGI shell: `app.mount("/retrysafe", console.asgi)`. The console is sync, so each request runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from retrysafe.console.headers import CUT_SHORT, TOO_LARGE, list_headers
from retrysafe.console.messages import MAX_BODY_BYTES, ConsoleRequest, ConsoleResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiShell:
    def __init__(self, handle: Callable[[ConsoleRequest], ConsoleResponse]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the console answers HTTP, not {scope['type']!r}")
        body = await _read_body(receive)
        if isinstance(body, bytes):
            response = await asyncio.to_thread(self._handle, build_request(scope, body))
        else:
            response = body
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in list_headers(response)]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})


def build_request(scope: Scope, body: bytes) -> ConsoleRequest:
    mount = str(scope.get("root_path", "")).rstrip("/")
    path = take_mount_away(str(scope["path"]), mount, str(scope.get("app_root_path", "")).rstrip("/"))
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        # HTTP/2 may send each cookie in a header of its own. Others are joined as WSGI servers do: of two origins none
        # is ours.
        between = "; " if name == "cookie" else ","
        headers[name] = f"{headers[name]}{between}{value}" if name in headers else value
    query = bytes(scope.get("query_string", b"")).decode("latin-1")
    return ConsoleRequest(str(scope["method"]), path or "/", query, headers, body, mount, scope)


def take_mount_away(path: str, mount: str, proxied: str) -> str:
    """The path below the mount. Starlette leaves the mount in `path`; other servers take it away. `proxied` is the
    front part of the mount, which a proxy may have taken away, so that only the rest of it is in `path`."""
    for prefix in (mount, mount.removeprefix(proxied)):
        if path == prefix or (prefix and path.startswith(f"{prefix}/")):
            return path[len(prefix) :] or "/"
    return path


async def _read_body(receive: Receive) -> bytes | ConsoleResponse:
    """The whole body, or why it is refused."""
    body = bytearray()  # not bytes: each piece would copy all before it
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return CUT_SHORT  # the client went away
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return TOO_LARGE
        if not message.get("more_body"):
            return bytes(body)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
