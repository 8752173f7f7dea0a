"""One order operation behind a route of each framework, called as a client would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, Header
from flask import Flask
from flask import request as flask_request
from litestar import Litestar, Request
from litestar import post as litestar_post
from quart import Quart
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.routing import Route

from retrysafe.operations import Operation
from retrysafe.web import fastapi, flask, litestar, quart, starlette
from retrysafe.web.view import RequestView
from tests.operations.world import OrderIn, World

Call = Callable[..., httpx.Response]


def account(view: RequestView) -> str:
    """The principal of a request to the status URL."""
    return view.headers["authorization"]


def current_account(authorization: Annotated[str, Header()]) -> str:
    return authorization


def on_fastapi(w: World, operation: Operation, strength: Any, **options: Any) -> Any:
    app = FastAPI()
    fastapi.install(app, safe=w.safe, **options)

    protect = fastapi.idempotent(current_account, strength=strength)

    @app.post("/orders")
    async def orders(order: OrderIn, key: Any = Depends(protect)) -> Any:  # noqa: B008  (FastAPI's way)
        return fastapi.respond(await operation.start(order, key=key))

    return app


def on_answer_route(w: World, operation: Operation, strength: Any, **options: Any) -> Any:
    """The handler returns the operation's result unchanged."""
    app = FastAPI()
    app.router.route_class = fastapi.AnswerRoute
    fastapi.install(app, safe=w.safe, **options)

    protect = fastapi.idempotent(current_account, strength=strength)

    @app.post("/orders")
    async def orders(order: OrderIn, key: Any = Depends(protect)) -> Any:  # noqa: B008  (FastAPI's way)
        return await operation.start(order, key=key)

    return app


def on_starlette(w: World, operation: Operation, strength: Any, **options: Any) -> Any:
    @starlette.idempotent(lambda request: request.headers["authorization"], strength=strength)
    async def orders(request: StarletteRequest) -> Any:
        return await operation.start(OrderIn(**await request.json()), key=request.state.key)

    app = Starlette(routes=[Route("/orders", orders, methods=["POST"])])
    app.add_middleware(starlette.IdempotencyMiddleware, safe=w.safe, **options)
    starlette.add_problem_handlers(app)
    return app


def on_quart(w: World, operation: Operation, strength: Any, **options: Any) -> Any:
    app = Quart("shop")
    quart.install(app, safe=w.safe, **options)

    @app.post("/orders")
    @quart.idempotent(lambda: quart_request.headers["authorization"], strength=strength)
    async def orders() -> Any:
        return await operation.start(OrderIn(**await quart_request.get_json()), key=quart.current_key())

    return app


def on_litestar(w: World, operation: Operation, strength: Any, **options: Any) -> Any:
    protected = litestar.idempotent(lambda request: request.headers["authorization"], strength=strength)

    @litestar_post("/orders", guards=[protected])
    async def orders(request: Request[Any, Any, Any]) -> litestar.AnswerResponse:
        return litestar.respond(
            await operation.start(OrderIn(**await request.json()), key=litestar.current_key(request))
        )

    app = Litestar([orders])
    litestar.install(app, safe=w.safe, **options)
    return app


def on_flask(w: World, operation: Operation, strength: Any, **options: Any) -> Any:
    app = Flask("shop")
    idempotency = flask.Idempotency(app, safe=w.safe, **options)

    @app.post("/orders")
    @idempotency.protect(scope=lambda: flask_request.headers["authorization"], strength=strength)
    def orders() -> Any:
        return operation.start(OrderIn(**flask_request.get_json()), key=flask.current_key())

    return app


ASYNC: dict[str, Callable[..., Any]] = {
    "fastapi": on_fastapi,
    "answer-route": on_answer_route,
    "starlette": on_starlette,
    "quart": on_quart,
    "litestar": on_litestar,
}
SYNC: dict[str, Callable[..., Any]] = {"flask": on_flask}


def calling(w: World, app: Any) -> Call:
    """Send one request. Exceptions of the application are not raised here, as for a client of a server."""
    base, alice = "http://shop", {"Authorization": "alice"}

    def call(method: str, path: str, **sent: Any) -> httpx.Response:
        sent["headers"] = {**alice, **sent.get("headers", {})}
        if w.loop is None:
            with httpx.Client(transport=httpx.WSGITransport(app, raise_app_exceptions=False), base_url=base) as http:
                return http.request(method, path, **sent)

        async def story() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=base) as http:
                return await http.request(method, path, **sent)

        response: httpx.Response = w.run(story())
        return response

    return call
