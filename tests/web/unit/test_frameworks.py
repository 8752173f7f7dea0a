"""Starlette around and inside the middleware: the cases in which similar packages fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from retrysafe import KeyRing, RetrySafe
from retrysafe.web.asgi import IdempotencyMiddleware
from tests.web.unit.harness import World, who

KEY = {"idempotency-key": "k1", "authorization": "alice"}
runs: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    runs.clear()


async def passing(request: Request, call_next: Any) -> Any:
    """An inner `@app.middleware("http")`: it makes every answer multi-chunk."""
    return await call_next(request)


async def plain(request: Request) -> JSONResponse:
    runs.append((await request.body()).decode())
    assert not await request.is_disconnected()
    return JSONResponse({"n": len(runs)}, 201)


async def streaming(request: Request) -> StreamingResponse:
    runs.append("streaming")

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            await asyncio.sleep(0)
            yield f"{number},".encode()

    return StreamingResponse(pieces(), media_type="text/csv")


async def failing(request: Request) -> Response:
    runs.append("failing")
    raise RuntimeError("boom")


async def file(request: Request) -> FileResponse:
    runs.append("file")
    return FileResponse(__file__, background=BackgroundTask(runs.append, "background"))


def application(safe: RetrySafe, *, inside: bool = True) -> Any:
    """As `app.add_middleware` puts it, or around the whole application."""
    routes = [
        Route(path, endpoint, methods=["POST", "GET"])
        for path, endpoint in [("/plain", plain), ("/streaming", streaming), ("/failing", failing), ("/file", file)]
    ]
    inner = Middleware(BaseHTTPMiddleware, dispatch=passing)
    ours = [Middleware(IdempotencyMiddleware, safe=safe, scope=who)] if inside else []
    app = Starlette(routes=routes, middleware=[*ours, inner])
    return app if inside else IdempotencyMiddleware(app, safe=safe, scope=who)


@pytest.mark.parametrize("inside", [True, False], ids=["add_middleware", "around"])
@pytest.mark.parametrize("path", ["/plain", "/streaming", "/file"])
async def test_under_an_inner_http_middleware(inside: bool, path: str) -> None:
    """A bug of a similar package: three identical POSTs were three executions."""
    transport = httpx.ASGITransport(application(World().safe, inside=inside))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        told = [await client.post(path, headers=KEY, content=b"hello") for _ in range(3)]
    assert len({answer.content for answer in told}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in told] == [None, "true", "true"]
    assert [run for run in runs if run != "background"] == [runs[0]]
    if path == "/streaming":
        assert told[2].content.count(b",") == 100


async def test_streaming_without_a_key_is_untouched() -> None:
    transport = httpx.ASGITransport(application(World().safe))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/streaming")).content.count(b",") == 100


@pytest.mark.parametrize("inside", [True, False], ids=["add_middleware", "around"])
async def test_an_uncaught_error_has_one_answer(inside: bool) -> None:
    transport = httpx.ASGITransport(application(World().safe, inside=inside), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        first, again = [await client.post("/failing", headers=KEY) for _ in range(2)]
    assert first.status_code == again.status_code == 500
    assert first.content == again.content
    assert runs == ["failing"]


async def test_s11_what_is_stored_is_encrypted_at_rest(tmp_path: Path) -> None:
    """A marker text in the body and in a header is in no file of the store, but is in the replay."""

    async def secret(request: Request) -> JSONResponse:
        return JSONResponse({"card": "canary-4242"}, headers={"Location": "/canary-location"})

    file = tmp_path / "keys.db"
    safe = RetrySafe(f"sqlite:///{file}", keyring=KeyRing({"k": bytes(range(32))}))
    app = IdempotencyMiddleware(Starlette(routes=[Route("/", secret, methods=["POST"])]), safe=safe, scope=who)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        first, again = [await client.post("/", headers=KEY) for _ in range(2)]
    await safe.aclose()
    assert first.content == again.content
    assert again.headers["location"] == "/canary-location"
    assert again.headers["idempotent-replayed"] == "true"
    stored = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert b"alice" in stored, "these are the files"
    assert b"canary" not in stored
