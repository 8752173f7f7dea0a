"""The reference application as bare ASGI, with authentication as an outer layer: the claim is made at the edge.

`uvicorn tests.web.apps.asgi_app:app` claims at the edge, `tests.web.apps.asgi_app:deferred` when the handler asks.
"""

from __future__ import annotations

from typing import Any

from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.exchange import EXCHANGE
from tests.web.apps import reference

safe = reference.make_safe()


def header(scope: Any, name: bytes, default: str | None = None) -> str | None:
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == name), default)


async def read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left before its body was whole")
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def send_reply(send: Any, reply: reference.Reply) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers]
    if not reply.streamed and reply.status not in (204, 304):
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    # Like an inner BaseHTTPMiddleware: each part says that there is more, then an empty one ends it.
    for chunk in reply.chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def handler(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    if scope["path"] == "/health":
        return await send_reply(send, reference.Reply.json(200, {"ok": True}))
    account = scope.get("account") or await asked(scope)
    body = await read(receive)
    query = scope["query_string"].decode()
    tag = header(scope, b"x-tag", "-") or "-"
    reply = await reference.ahandle(scope["method"], scope["path"], query, tag, account, body)
    return await send_reply(send, reply)


async def asked(scope: Any) -> str:
    """Deferred: the handler authenticates, then claims."""
    account = reference.authenticate(header(scope, b"authorization"))
    name = reference.endpoint(scope["method"], scope["path"])
    await scope[EXCHANGE].claim(account, reference.POLICIES.get(name, reference.DEFAULT), target=name)
    return account


async def lifespan(receive: Any, send: Any) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return await safe.aclose()


def authenticated(inner: Any, *, here: bool) -> Any:
    """The outer middleware: it authenticates or refuses. With `here=False` it only turns a refusal into its answer."""

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await inner(scope, receive, send)
            return
        try:
            if here:
                scope = {**scope, "account": reference.authenticate(header(scope, b"authorization"))}
            await inner(scope, receive, send)
        except reference.Refused as refusal:
            await send_reply(send, reference.Reply.json(refusal.status, {"error": "refused"}))

    return outer


app = authenticated(
    IdempotencyMiddleware(
        handler,
        safe=safe,
        scope=lambda request: request.raw["account"],
        policy=reference.DEFAULT,
        routes=reference.POLICIES,
    ),
    here=True,
)
deferred = IdempotencyMiddleware(
    authenticated(handler, here=False),
    safe=safe,
    status_scope=reference.known_account,
)
