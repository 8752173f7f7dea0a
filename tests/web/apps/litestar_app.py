"""The reference application in Litestar: a guard authenticates, the next one claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar, Request, Response, get, route
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.logging import LoggingConfig
from litestar.response import Stream
from litestar.response.base import ASGIResponse

from retrysafe.web.litestar import idempotent, install
from tests.web.apps import reference

safe = reference.make_safe()


async def signed_in(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    try:
        connection.state.account = reference.authenticate(connection.headers.get("authorization"))
    except reference.Refused as refusal:
        raise HTTPException(detail="refused", status_code=refusal.status) from None


class Exact(Response[bytes]):
    """The reply's own headers and nothing else; in pieces where it has several."""

    def __init__(self, reply: reference.Reply) -> None:
        super().__init__(reply.body, status_code=reply.status)
        self.reply = reply

    def to_asgi_response(self, *args: Any, **kwargs: Any) -> Any:
        reply = self.reply
        if not reply.streamed:
            return ASGIResponse(body=reply.body, status_code=reply.status, headers=reply.headers)
        stream = Stream(pieces(reply), status_code=reply.status, headers=dict(reply.headers))
        return stream.to_asgi_response(*args, **kwargs)


async def pieces(reply: reference.Reply) -> AsyncIterator[bytes]:
    for chunk in reply.chunks:
        yield chunk


@get("/health", sync_to_thread=False)
def health() -> dict[str, bool]:
    return {"ok": True}


def made(name: str) -> HTTPRouteHandler:
    method, path = name.split(" ")
    claim = idempotent(lambda request: request.state.account, reference.POLICIES.get(name, reference.DEFAULT))

    async def handler(request: Request[Any, Any, Any]) -> Response[bytes]:
        body = await request.body()
        tag = request.headers.get("x-tag", "-")
        query = request.scope["query_string"].decode()
        return Exact(await reference.ahandle(request.method, request.url.path, query, tag, request.state.account, body))

    place = path.replace("{id}", "{id:str}")
    return route(place, http_method=[method], guards=[signed_in, claim], status_code=200)(handler)  # type: ignore[list-item]


app = Litestar(
    [health, *map(made, reference.ROUTES)],
    on_shutdown=[safe.aclose],
    request_max_body_size=None,
    logging_config=LoggingConfig(log_exceptions="always"),
)
install(app, safe=safe, status_scope=reference.known_account)
