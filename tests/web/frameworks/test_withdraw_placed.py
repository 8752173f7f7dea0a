"""`invalid="withdraw"` with FastAPI, wherever the middleware stands: inside the application, around it, in an
application that it is mounted in. A middleware that cannot see what the framework refuses says so in the log, once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from litestar import Litestar
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from retrysafe import Policy, RetrySafe
from retrysafe.web import asgi, fastapi, starlette

Place = Callable[[Any, RetrySafe], Any]
WITHDRAW = Policy(invalid="withdraw")


class Order(BaseModel):
    amount: int


def build_app() -> FastAPI:
    app = FastAPI()

    @app.post("/pay", status_code=201)
    async def pay(order: Order) -> int:
        return order.amount

    return app


def options(safe: RetrySafe, policy: Policy = WITHDRAW) -> dict[str, Any]:
    return {"safe": safe, "scope": lambda view: "alice", "policy": policy}


def place_inside(middleware: Any, safe: RetrySafe) -> Any:
    app = build_app()
    app.add_middleware(middleware, **options(safe))
    return app


def place_around(middleware: Any, safe: RetrySafe) -> Any:
    return middleware(build_app(), **options(safe))


def place_around_another_middleware(middleware: Any, safe: RetrySafe) -> Any:
    return middleware(CORSMiddleware(build_app()), **options(safe))


def place_in_the_outer_application(middleware: Any, safe: RetrySafe) -> Any:
    app = Starlette(routes=[Mount("/", app=build_app())])
    app.add_middleware(middleware, **options(safe))
    return app


def place_around_a_mounted_one(middleware: Any, safe: RetrySafe) -> Any:
    return Starlette(routes=[Mount("/", app=middleware(build_app(), **options(safe)))])


def place_as_a_dependency(middleware: Any, safe: RetrySafe) -> Any:
    app = FastAPI()
    app.add_middleware(middleware, safe=safe)

    @app.post("/pay", status_code=201, dependencies=[Depends(fastapi.idempotent(lambda: "alice", WITHDRAW))])
    async def pay(order: Order) -> int:
        return order.amount

    return app


PLACES = [
    place_inside,
    place_around,
    place_around_another_middleware,
    place_in_the_outer_application,
    place_around_a_mounted_one,
    place_as_a_dependency,
]


@pytest.fixture
def safe() -> RetrySafe:
    return RetrySafe("memory://")


async def send(app: Any, *amounts: Any) -> list[int]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        headers = {"Idempotency-Key": "k"}
        return [(await http.post("/pay", headers=headers, json={"amount": one})).status_code for one in amounts]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("middleware", [starlette.IdempotencyMiddleware, fastapi.IdempotencyMiddleware])
async def test_the_first_rejection_leaves_the_key_open(middleware: Any, place: Place, safe: RetrySafe) -> None:
    app = place(middleware, safe)
    assert await send(app, "x", 1, 1, 2) == [422, 201, 201, 422]


async def test_what_starlettes_middleware_marks_stays_in_the_document(safe: RetrySafe) -> None:
    app = place_as_a_dependency(starlette.IdempotencyMiddleware, safe)
    await send(app, 1)
    (parameter,) = app.openapi()["paths"]["/pay"]["post"]["parameters"]
    assert parameter["name"] == "Idempotency-Key"


# A middleware that cannot see it ---------------------------------------------------------------------


def read_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "withdraw" in record.msg]


async def start(app: Any) -> None:
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, str]:
        return next(asked)

    async def send(message: dict[str, str]) -> None: ...

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)


@pytest.mark.parametrize("place", [place_inside, place_around, place_in_the_outer_application])
async def test_the_bare_middleware_says_once_what_it_cannot_see(
    place: Place, safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    app = place(asgi.IdempotencyMiddleware, safe)
    with caplog.at_level(logging.WARNING, "retrysafe"):
        await start(app)
        assert await send(app, "x", 1) == [422, 422]
    (warning,) = read_warnings(caplog)
    adapter = "starlette" if place is place_in_the_outer_application else "fastapi"
    assert f"retrysafe.web.{adapter}" in warning


async def test_without_a_lifespan_the_first_request_says_it(safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    app = asgi.IdempotencyMiddleware(Litestar([], logging_config=None), **options(safe, Policy.preset("stripe_v1")))
    with caplog.at_level(logging.WARNING, "retrysafe"):
        await send(app, 1, 2)
    (warning,) = read_warnings(caplog)
    assert "retrysafe.web.litestar" in warning


@pytest.mark.parametrize(
    ("app", "policy"), [(build_app(), Policy()), (lambda scope, receive, send: None, WITHDRAW)], ids=["store", "plain"]
)
async def test_who_loses_nothing_is_told_nothing(
    app: Any, policy: Policy, safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    bare = asgi.IdempotencyMiddleware(app, **options(safe, policy))
    with caplog.at_level(logging.WARNING, "retrysafe"):
        bare.make_entry_probe({"type": "http"})
    assert read_warnings(caplog) == []
