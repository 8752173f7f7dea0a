"""A route that answers 202 by a policy of its own, without a status URL, is named in the log when the application is
set up, and not at its first answer."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask
from litestar import Litestar, post
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from retrysafe import Policy, RetrySafe
from retrysafe.web import fastapi, flask, litestar, quart, starlette
from retrysafe.web.settings import Options

ACCEPTED = Policy(busy="accepted")
SERVED: Options = {"status_scope": lambda view: "alice"}


@pytest.fixture
def safe() -> RetrySafe:
    return RetrySafe("memory://")


def read_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.args[0]) for record in caplog.records if "without a status URL" in record.msg and record.args]  # type: ignore[index]


async def start(app: Any) -> None:
    """What a server does before the first request."""
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    said: list[str] = []

    async def receive() -> dict[str, str]:
        return next(asked)

    async def send(message: dict[str, str]) -> None:
        said.append(message["type"])

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def build_fastapi(safe: RetrySafe, options: Options) -> FastAPI:
    app, router = FastAPI(), APIRouter(prefix="/shop")
    default, accepted = (Depends(fastapi.idempotent(lambda: "alice", policy)) for policy in (None, ACCEPTED))
    fastapi.install(app, safe=safe, **options)

    @app.post("/plain")
    async def plain(key: Any = default) -> None: ...

    @app.post("/pay")
    async def pay(key: Any = accepted) -> None: ...

    @router.put("/ship")
    async def ship(key: Any = accepted) -> None: ...

    app.include_router(router)
    return app


def build_starlette(safe: RetrySafe, options: Options) -> Starlette:
    @starlette.idempotent(lambda request: "alice", ACCEPTED)
    async def pay(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    @starlette.idempotent(lambda request: "alice")
    async def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    routes = [
        Route("/pay", pay, methods=["POST"]),
        Route("/plain", plain, methods=["POST"]),
        Mount("/shop", routes=[Route("/ship", pay, methods=["PUT"])]),
    ]
    middleware: Any = Middleware(starlette.IdempotencyMiddleware, safe=safe, **options)
    return Starlette(routes=routes, middleware=[middleware])


def build_quart(safe: RetrySafe, options: Options) -> Quart:
    app = Quart("shop")
    quart.install(app, safe=safe, **options)

    @app.post("/pay")
    @quart.idempotent(lambda: "alice", ACCEPTED)
    async def pay() -> str:
        return ""

    @app.put("/shop/ship")
    @quart.idempotent(lambda: "alice", ACCEPTED)
    async def ship() -> str:
        return ""

    @app.post("/plain")
    @quart.idempotent(lambda: "alice")
    async def plain() -> str:
        return ""

    return app


@pytest.mark.parametrize("build", [build_fastapi, build_starlette, build_quart])
async def test_the_servers_start_names_them(build: Any, safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        await start(build(safe, {}))
    assert sorted(read_warnings(caplog)) == ["POST /pay", "PUT /shop/ship"]


@pytest.mark.parametrize("build", [build_fastapi, build_starlette, build_quart])
async def test_nothing_is_said_where_there_is_a_status_url(
    build: Any, safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        await start(build(safe, SERVED))
    assert read_warnings(caplog) == []


@pytest.mark.parametrize(("options", "named"), [({}, ["POST /pay"]), (SERVED, [])])
def test_litestar_names_them_when_it_is_installed(
    options: Options, named: list[str], safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    @post("/pay", guards=[litestar.idempotent(lambda request: "alice", ACCEPTED)])
    async def pay() -> None: ...

    @post("/plain", guards=[litestar.idempotent(lambda request: "alice")])
    async def plain() -> None: ...

    app = Litestar([pay, plain], logging_config=None)  # it would replace the handler that listens here
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        litestar.install(app, safe=safe, **options)
    assert read_warnings(caplog) == named


@pytest.mark.parametrize("early", [True, False])
def test_flask_names_them_whether_views_or_application_come_first(
    early: bool, safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    app, idempotency = Flask("shop"), flask.Idempotency(safe=safe)
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        if early:
            idempotency.init_app(app)

        @app.post("/pay")
        @idempotency.protect(scope=lambda: "alice", policy=ACCEPTED)
        def pay() -> str:
            return ""

        @app.post("/plain")
        @idempotency.protect(scope=lambda: "alice")
        def plain() -> str:
            return ""

        if not early:
            idempotency.init_app(app)
    (named,) = read_warnings(caplog)
    assert named.endswith("pay")


def test_flask_says_nothing_where_there_is_a_status_url(safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    idempotency = flask.Idempotency(Flask("shop"), safe=safe, **SERVED)
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        idempotency.protect(scope=lambda: "alice", policy=ACCEPTED)(lambda: "")
    assert read_warnings(caplog) == []
