"""The reference application in FastAPI: authentication is a dependency, and the decorator claims after it.

It has an inner BaseHTTPMiddleware on purpose: that one sends every answer in parts, which must not matter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import Response, StreamingResponse

from retrysafe.web.fastapi import idempotent, install
from tests.web.apps import reference

safe = reference.make_safe()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await safe.aclose()


app = FastAPI(lifespan=lifespan)


@app.middleware("http")
async def inner(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return await call_next(request)


install(app, safe=safe, status_scope=reference.known_account)


def current_account(authorization: Annotated[str | None, Header()] = None) -> str:
    try:
        return reference.authenticate(authorization)
    except reference.Refused as refusal:
        raise HTTPException(refusal.status, "refused") from None


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


def response(reply: reference.Reply) -> Response:
    made: Response = StreamingResponse(pieces(reply)) if reply.streamed else Response(reply.body)
    made.status_code = reply.status
    length = [] if reply.streamed or reply.status in (204, 304) else [("content-length", str(len(reply.body)))]
    made.raw_headers = [(name.lower().encode(), value.encode()) for name, value in [*reply.headers, *length]]
    return made


async def pieces(reply: reference.Reply) -> AsyncIterator[bytes]:
    for chunk in reply.chunks:
        yield chunk


def add(name: str) -> None:
    method, path = name.split(" ")

    @idempotent(current_account, reference.POLICIES.get(name, reference.DEFAULT))
    async def handler(
        request: Request,
        account: Annotated[str, Depends(current_account)],
        x_tag: Annotated[str, Header()] = "-",
    ) -> Response:
        body = await request.body()
        return response(
            await reference.ahandle(request.method, request.url.path, request.url.query, x_tag, account, body)
        )

    app.add_api_route(path, handler, methods=[method], response_model=None)


for name in reference.ROUTES:
    add(name)
