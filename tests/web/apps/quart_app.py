"""The reference application in Quart: a decorator authenticates, the one below it claims."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from quart import Quart, Response, abort, g, request

from retrysafe.web.quart import idempotent, install
from tests.web.apps import reference

safe = reference.make_safe()
app = Quart(__name__)
app.after_serving(safe.aclose)
install(app, safe=safe, status_scope=reference.known_account)


def signed_in(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            g.account = reference.authenticate(request.headers.get("authorization"))
        except reference.Refused as refusal:
            abort(refusal.status)
        return await view(*args, **kwargs)

    return checked


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


def response(reply: reference.Reply) -> Response:
    made = Response(pieces(reply) if reply.streamed else reply.body, reply.status)
    made.headers.clear()
    for name, value in reply.headers:
        made.headers.add(name, value)
    if not reply.streamed and reply.status not in (204, 304):
        made.headers.add("Content-Length", str(len(reply.body)))
    return made


async def pieces(reply: reference.Reply) -> AsyncIterator[bytes]:
    for chunk in reply.chunks:
        yield chunk


def add(name: str) -> None:
    method, path = name.split(" ")

    @app.route(path.replace("{id}", "<id>"), methods=[method], endpoint=name.replace(".", "-"))
    @signed_in
    @idempotent(lambda: g.account, reference.POLICIES.get(name, reference.DEFAULT))
    async def view(**fields: str) -> Response:
        query = request.query_string.decode()
        tag, body = request.headers.get("x-tag", "-"), await request.get_data()
        return response(await reference.ahandle(request.method, request.path, query, tag, g.account, body))


for name in reference.ROUTES:
    add(name)
