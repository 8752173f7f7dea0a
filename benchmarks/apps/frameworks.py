"""The same small application in other frameworks, bare, and protected in each framework's own way.

Keys are optional everywhere, so that requests without one can be measured too. ASGI applications are called as they
are; WSGI applications in the same thread, one request after the other.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.apps.fastapi_app import RECEIPT, WAIT, ours_model
from benchmarks.apps.fastapi_app import bare_model as bare_fastapi
from benchmarks.http import BODY
from benchmarks.in_process import call


def _open(url: str) -> Any:
    from retrysafe import RetrySafe

    safe = RetrySafe(url)
    safe.migrate()
    return safe


def _optional() -> Any:
    from retrysafe import Policy

    return Policy(mode="optional")


async def _charge(order: Any) -> dict[str, Any]:
    await asyncio.sleep(WAIT)
    return {**RECEIPT, "amount": order["amount"]}


def starlette_app(url: str | None) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def pay(request: Request) -> JSONResponse:
        return JSONResponse(await _charge(await request.json()), 201)

    if url is None:
        return Starlette(routes=[Route("/payments", pay, methods=["POST"])])
    from retrysafe.web.starlette import IdempotencyMiddleware, idempotent

    protect = idempotent(scope=lambda request: request.headers["authorization"])
    app = Starlette(routes=[Route("/payments", protect(pay), methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, safe=_open(url), policy=_optional())
    return app


def litestar_app(url: str | None) -> Any:
    from litestar import Litestar, Request, post

    guards: list[Any] = []
    if url is not None:
        from retrysafe.web.litestar import idempotent

        guards.append(idempotent(scope=lambda request: request.headers["authorization"]))

    @post("/payments", guards=guards)
    async def pay(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await _charge(await request.json())

    # Litestar evaluates annotations by this file's names.
    pay.fn.__annotations__.update(request=Request[Any, Any, Any])
    app = Litestar([pay], openapi_config=None)
    if url is not None:
        from retrysafe.web.litestar import install

        install(app, safe=_open(url), policy=_optional())
    return app


def quart_app(url: str | None) -> Any:
    from quart import Quart, request

    app = Quart("payments")

    async def pay() -> Any:
        return await _charge(await request.get_json()), 201

    if url is not None:
        from retrysafe.web.quart import idempotent, install

        install(app, safe=_open(url), policy=_optional())
        pay = idempotent(scope=lambda: request.headers["authorization"])(pay)
    app.add_url_rule("/payments", "pay", pay, methods=["POST"])

    async def with_patience(scope: Any, receive: Any, send: Any) -> None:
        """Quart goes on to receive until the client leaves, so after the body nothing may come."""
        messages = [await receive()]

        async def receive_once() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()

        await app(scope, receive_once, send)

    return with_patience


def flask_app(url: str | None) -> Any:
    from flask import Flask, request

    app = Flask("payments")

    def pay() -> Any:
        time.sleep(WAIT)
        return {**RECEIPT, "amount": request.get_json()["amount"]}, 201

    view: Callable[[], Any] = pay
    if url is not None:
        from retrysafe.web.flask import Idempotency

        idempotency = Idempotency(safe=_open(url), policy=_optional())
        idempotency.init_app(app)
        view = idempotency.protect(scope=lambda: request.headers["authorization"])(pay)
    app.add_url_rule("/payments", "pay", view, methods=["POST"])
    return app


def django_app(url: str | None) -> Any:
    from benchmarks.apps import django_app as project

    kind = "bare" if url is None else "ours"
    application = project.prepared(kind, url or "")
    from django.urls import path

    project.urlpatterns = [path("payments", project.view(kind))]  # type: ignore[attr-defined]  # Django looks for the name
    return application


FRAMEWORKS: dict[str, Callable[[str | None], Any]] = {
    "FastAPI": lambda url: bare_fastapi("") if url is None else ours_model(url),
    "Starlette": starlette_app,
    "Litestar": litestar_app,
    "Quart": quart_app,
    "Flask": flask_app,
    "Django": django_app,
}
WSGI = frozenset({"Flask", "Django"})


async def call_framework(name: str, app: Any, key: str | None) -> int:
    """One request; returns the status of its answer."""
    return call_wsgi(app, key) if name in WSGI else await call(app, key)


def call_wsgi(app: Any, key: str | None) -> int:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/payments", "SCRIPT_NAME": "", "QUERY_STRING": "",
        "SERVER_NAME": "a", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(BODY)), "HTTP_HOST": "a",
        "HTTP_AUTHORIZATION": "Bearer account-7", "wsgi.input": io.BytesIO(BODY), "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http", "wsgi.version": (1, 0), "wsgi.multithread": True, "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }  # fmt: skip
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    told: list[str] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], None]:
        told.append(status)
        return lambda data: None

    answer = app(environ, start)
    try:
        json.loads(b"".join(answer))
    finally:
        getattr(answer, "close", lambda: None)()
    return int(told[-1].split()[0])
