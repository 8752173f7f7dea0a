"""Call an ASGI application without a server: one request, message by message, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
HeaderPairs = Iterable[tuple[bytes, bytes]]


class AsgiAnswer(NamedTuple):
    """What the application sent. `status` is 0 if it sent nothing."""

    status: int
    headers: dict[str, str]
    body: bytes


def build_scope(
    path: str, key: str | None = None, *, method: str = "POST", headers: HeaderPairs = (), **more: Any
) -> dict[str, Any]:
    """The scope of one request with a JSON body, as a server would build it. `more` adds or replaces entries."""
    pairs = [(b"content-type", b"application/json")]
    if key is not None:
        pairs.append((b"idempotency-key", key.encode("latin-1")))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*pairs, *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **more,
    }


class AsgiCall:
    """One request: its body in chunks, the messages that were sent back, and a client that can disconnect."""

    def __init__(self, *chunks: bytes) -> None:
        last = len(chunks) - 1
        self._messages = [
            {"type": "http.request", "body": chunk, "more_body": number < last} for number, chunk in enumerate(chunks)
        ]
        self.left = asyncio.Event()
        """Set it, and the client is gone."""
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"] if self.sent else 0
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in (self.sent[0]["headers"] if self.sent else ())}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


async def call(app: AsgiApp, scope: dict[str, Any], *chunks: bytes) -> AsgiCall:
    """One request with this scope, and this body in chunks (`{}` if none is given)."""
    made = AsgiCall(*(chunks or (b"{}",)))
    await app(scope, made.receive, made.send)
    return made


async def post(app: AsgiApp, path: str, key: str | None = None, body: bytes = b"{}") -> AsgiAnswer:
    """One POST with a JSON body, and its answer."""
    made = await call(app, build_scope(path, key), body)
    return AsgiAnswer(made.status, made.headers, made.body)
