"""One payment in a transaction, behind a route of each framework. The test sets what the handler does after its write
(`Desk.then`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import httpx
import psycopg
from django.db import connections
from fastapi import Body, Depends, FastAPI, File, Form, Header
from fastapi import HTTPException as FastAPIError
from flask import Flask
from flask import Response as FlaskResponse
from flask import abort as flask_abort
from flask import request as flask_request
from litestar import Litestar, Request
from litestar import Response as LitestarResponse
from litestar import post as litestar_post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException as LitestarError
from litestar.response import Stream
from psycopg_pool import ConnectionPool
from quart import Quart
from quart import Response as QuartResponse
from quart import abort as quart_abort
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from retrysafe.operations import stage
from retrysafe.testing.driver import LoopThread
from retrysafe.web import fastapi, flask, litestar, quart, starlette
from tests.transactions.django_databases import django_alias
from tests.transactions.rigs import World

EVENTS = "text/event-stream"
Step = str | Callable[[], object]


class Told(NamedTuple):
    """What the handler answers."""

    status: int = 201
    body: bytes = b'{"paid":true}'
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"), ("X-Kept", "yes"))

    @property
    def kind(self) -> str:
        return dict(self.headers)["Content-Type"]


class Desk:
    """Where payments are made."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.then: list[Callable[[], Told]] = []
        """What the first, second … call does after its write; afterwards the plain answer."""
        self.before: list[Callable[[], object]] = []
        """What happens when the first, second … call begins."""
        self.then_sql: Sequence[Step] = ()
        """What the handler does after its write, each time: statements on its transaction, and other things."""
        self.topics: Sequence[str] = ()
        """The topics of the jobs that the handler stages after its write."""
        self.calls: list[str] = []
        self.abort: Callable[[int], Any] = lambda status: None
        self.closers: list[Callable[[], object]] = []
        mark = "?" if world.url.startswith("sqlite") else "%s"
        self.sql = f"INSERT INTO effects (value) VALUES ({mark})"

    def pay(self, tx: Any, value: str) -> Told:
        self.begin()
        tx.execute(self.sql, [value])
        for topic in self.topics:
            stage(tx, topic, {"of": value})
        for step in self.then_sql:
            step() if callable(step) else tx.execute(step)
        return self.told(value)

    async def apay(self, tx: Any, value: str) -> Told:
        self.begin()
        await tx.execute(self.sql, [value])
        for topic in self.topics:
            await stage(tx, topic, {"of": value})
        for step in self.then_sql:
            step() if callable(step) else await tx.execute(step)
        return self.told(value)

    def begin(self) -> None:
        if self.before:
            self.before.pop(0)()

    def told(self, value: str) -> Told:
        self.calls.append(value)
        return self.then.pop(0)() if self.then else Told()

    def refuse(self, status: int) -> Told:
        """Refuse as in the framework: by an exception that it turns into an answer."""
        self.abort(status)
        raise AssertionError("it raises")


def raising(error: Exception) -> Any:
    def do() -> Told:
        raise error

    return do


Build = Callable[..., Any]


def current_account(authorization: Annotated[str, Header()]) -> str:
    return authorization


def on_fastapi(desk: Desk, **how: Any) -> Any:
    app, protect = FastAPI(), fastapi.idempotent(current_account, strength="transaction", **how.pop("route"))
    fastapi.install(app, **how)
    desk.abort = _raising(FastAPIError)

    @app.post("/pay")
    async def pay(value: Annotated[str, Body(embed=True)], tx: Any = Depends(protect)) -> Any:  # noqa: B008
        return _starlette_answer(await desk.apay(tx, value))

    @app.post("/form")
    async def form(
        value: Annotated[str, Form()],
        more: Annotated[bytes, File()] = b"",
        tx: Any = Depends(protect),  # noqa: B008
    ) -> Any:
        return _starlette_answer(await desk.apay(tx, value + more.decode()))

    return app


def on_fastapi_def(desk: Desk, **how: Any) -> Any:
    app, protect = FastAPI(), fastapi.idempotent(current_account, strength="transaction", **how.pop("route"))
    fastapi.install(app, **how)
    desk.abort = _raising(FastAPIError)

    @app.post("/pay")
    def pay(value: Annotated[str, Body(embed=True)], tx: Any = Depends(protect)) -> Any:  # noqa: B008
        return _starlette_answer(desk.pay(tx, value))

    @app.post("/form")
    def form(
        value: Annotated[str, Form()],
        more: Annotated[bytes, File()] = b"",
        tx: Any = Depends(protect),  # noqa: B008
    ) -> Any:
        return _starlette_answer(desk.pay(tx, value + more.decode()))

    return app


def on_starlette(desk: Desk, **how: Any) -> Any:
    protect = starlette.idempotent(authorized, strength="transaction", **how.pop("route"))

    @protect
    async def pay(request: StarletteRequest, tx: Any) -> Response:
        return _starlette_answer(await desk.apay(tx, (await request.json())["value"]))

    @protect
    async def form(request: StarletteRequest, tx: Any) -> Response:
        async with request.form() as sent:
            more: Any = sent.get("more")
            value = f"{sent['value']}{(await more.read()).decode() if more else ''}"
        return _starlette_answer(await desk.apay(tx, value))

    return _starlette_app(desk, how, pay, form)


def on_starlette_def(desk: Desk, **how: Any) -> Any:
    @starlette.idempotent(authorized, strength="transaction", **how.pop("route"))
    def pay(request: StarletteRequest, tx: Any) -> Response:
        import json

        return _starlette_answer(desk.pay(tx, json.loads(request._body)["value"]))

    return _starlette_app(desk, how, pay)


def _starlette_app(desk: Desk, how: Any, *handlers: Any) -> Any:
    app = Starlette(routes=[Route(f"/{handler.__name__}", handler, methods=["POST"]) for handler in handlers])
    app.add_middleware(starlette.IdempotencyMiddleware, **how)
    starlette.add_problem_handlers(app)
    desk.abort = _raising(HTTPException)
    return app


def _starlette_answer(told: Told) -> Response:
    headers = dict(told.headers)
    if told.kind == EVENTS:
        return StreamingResponse(iter([told.body]), told.status, headers)
    return Response(told.body, told.status, headers)


def authorized(request: Any) -> str:
    found: str = request.headers["authorization"]
    return found


def on_quart(desk: Desk, **how: Any) -> Any:
    app = Quart("shop")
    route = how.pop("route")
    quart.install(app, **how)
    desk.abort = quart_abort

    protect = quart.idempotent(lambda: authorized(quart_request), strength="transaction", **route)

    @app.post("/pay")
    @protect
    async def pay(tx: Any) -> Any:
        told = await desk.apay(tx, (await quart_request.get_json())["value"])
        return QuartResponse(told.body, told.status, dict(told.headers))

    @app.post("/form")
    @protect
    async def form(tx: Any) -> Any:
        more = (await quart_request.files).get("more")
        value = (await quart_request.form)["value"] + (more.read().decode() if more else "")
        told = await desk.apay(tx, value)
        return QuartResponse(told.body, told.status, dict(told.headers))

    return app


async def provide_other() -> AsyncIterator[str]:
    """A second dependency with a clean-up: Litestar ends several of them in tasks of their own."""
    yield "other"


def on_litestar(desk: Desk, **how: Any) -> Any:
    protect = litestar.idempotent(authorized, strength="transaction", **how.pop("route"))
    desk.abort = _raising(LitestarError)

    @litestar_post("/pay", guards=[protect], dependencies={"tx": litestar.provide_tx, "other": provide_other})
    async def pay(
        request: Request[Any, Any, Any], tx: NamedDependency[Any], other: NamedDependency[str]
    ) -> LitestarResponse[Any]:
        told = await desk.apay(tx, (await request.json())["value"])
        headers = {name: value for name, value in told.headers if name != "Content-Type"}
        made: Any = Stream(iter([told.body])) if told.kind == EVENTS else LitestarResponse(told.body)
        made.status_code, made.media_type = told.status, told.kind
        made.headers.update(headers)
        return made  # type: ignore[no-any-return]

    @litestar_post("/form", guards=[protect], dependencies={"tx": litestar.provide_tx})
    async def form(request: Request[Any, Any, Any], tx: NamedDependency[Any]) -> LitestarResponse[Any]:
        sent: Any = await request.form()
        more = sent.get("more")
        told = await desk.apay(tx, sent["value"] + ((await more.read()).decode() if more else ""))
        return LitestarResponse(told.body, status_code=told.status, media_type=told.kind)

    app = Litestar([pay, form])
    litestar.install(app, **how)
    return app


def on_flask(desk: Desk, **how: Any) -> Any:
    app = Flask("shop")
    route = how.pop("route")
    idempotency = flask.Idempotency(app, **how)
    desk.abort = flask_abort

    protect = idempotency.protect(scope=lambda: authorized(flask_request), strength="transaction", **route)

    @app.post("/pay")
    @protect
    def pay(tx: Any) -> Any:
        told = desk.pay(tx, flask_request.get_json()["value"])
        return FlaskResponse(told.body, told.status, dict(told.headers))

    @app.post("/form")
    @protect
    def form(tx: Any) -> Any:
        more = flask_request.files.get("more")
        told = desk.pay(tx, flask_request.form["value"] + (more.read().decode() if more else ""))
        return FlaskResponse(told.body, told.status, dict(told.headers))

    return app


def _raising(kind: Any) -> Callable[[int], Any]:
    def abort(status: int) -> None:
        raise kind(status_code=status, detail="no")

    return abort


class Kind(NamedTuple):
    build: Build
    driver: str
    """Whether its transactions are sync or async."""
    asgi: bool


KINDS = {
    "fastapi": Kind(on_fastapi, "async", True),
    "fastapi-def": Kind(on_fastapi_def, "sync", True),
    "starlette": Kind(on_starlette, "async", True),
    "starlette-def": Kind(on_starlette_def, "sync", True),
    "quart": Kind(on_quart, "async", True),
    "litestar": Kind(on_litestar, "async", True),
    "flask": Kind(on_flask, "sync", False),
}


@contextmanager
def transactions(world: World, driver: str, isolation: str = "") -> Iterator[Any]:
    """What its user passes as tx. `isolation` is one of PostgreSQL's isolation levels."""
    options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}" if isolation else ""
    if driver == "django":
        with django_alias(world.plain, 5) as alias:
            if options:
                connections.settings[alias]["OPTIONS"] = {"options": options}
            yield f"django:{alias}"
    elif world.url.startswith("sqlite"):
        yield world.path
    elif driver == "async":
        yield lambda: psycopg.AsyncConnection.connect(world.plain, options=options)
    else:
        how = {"options": options}
        with ConnectionPool(world.plain, min_size=1, max_size=4, open=True, kwargs=how) as pool:
            yield pool


class Shop:
    """An application and its clients."""

    def __init__(self, world: World, kind: Kind, tx: Any) -> None:
        self.world = world
        self.kind = kind
        self.desk = Desk(world)
        self.tx = tx
        self.loop = LoopThread() if kind.asgi else None
        self.app: Any = None

    def open(self, *, policy: Any = None, **options: Any) -> Shop:
        route = {"policy": policy, "tx": options.pop("tx", self.tx)}
        self.app = self.kind.build(self.desk, safe=self.world.safe, route=route, **options)
        return self

    def post(
        self, key: str | None = "k", value: str = "a", who: str = "alice", path: str = "/pay", **body: Any
    ) -> httpx.Response:
        headers = {"Authorization": who, **body.pop("headers", {})} | ({"Idempotency-Key": key} if key else {})
        sent: Any = {**(body or {"json": {"value": value}}), "headers": headers}
        if self.loop is None:
            transport = httpx.WSGITransport(self._wsgi, raise_app_exceptions=False)
            with httpx.Client(transport=transport, base_url="http://shop") as http:
                return http.post(path, **sent)
        response: httpx.Response = self.loop.run(self._apost(path, sent))
        return response

    def _wsgi(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Like a server that reads chunked bodies to their end."""
        return self.app({**environ, "wsgi.input_terminated": True}, start_response)

    async def _apost(self, path: str, sent: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            return await http.post(path, **sent)

    def close(self) -> None:
        for closer in self.desk.closers:
            closer()
        if self.loop is not None:
            self.loop.run(self.world.safe.async_store.aclose())
            self.loop.close()
