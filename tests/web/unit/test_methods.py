"""A method is protected however it is spelled: frameworks that dispatch on the upper case run `patch` as PATCH."""

from __future__ import annotations

from typing import Any

import flask
import pytest
import quart

from retrysafe import Policy, RetrySafe
from retrysafe.web import asgi, wsgi
from retrysafe.web.flask import Idempotency
from retrysafe.web.quart import idempotent, install
from tests.web.frameworks.calling import calling, is_problem, is_replay, keyed
from tests.web.unit.harness import Counting, World, WsgiCall, call, scope_of, who

SPELLINGS = ["patch", "Patch", "post"]


class Runs:
    """A plain WSGI application that records the methods it gets."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def __call__(self, environ: Any, start_response: Any) -> list[bytes]:
        self.methods.append(environ["REQUEST_METHOD"])
        start_response("201 Created", [])
        return [b"made it"]


@pytest.mark.parametrize("method", SPELLINGS)
def test_wsgi_protects_and_hands_the_method_on_as_it_came(method: str) -> None:
    world, app = World(), Runs()
    middleware = wsgi.IdempotencyMiddleware(app, safe=world.safe, scope=who)
    first, again, other = (WsgiCall(middleware, REQUEST_METHOD=spelled) for spelled in (method, method, method.upper()))
    missing = WsgiCall(middleware, key=None, REQUEST_METHOD=method)
    assert (first.status, again.status, missing.status) == (201, 201, 400)
    assert dict(again.headers)["idempotent-replayed"] == "true"
    assert dict(other.headers)["idempotent-replayed"] == "true", "one request in two spellings"
    assert app.methods == [method]
    assert [record.target for record in world.records] == [f"{method.upper()} /pay"]


@pytest.mark.parametrize("method", SPELLINGS)
async def test_asgi_protects_however_the_method_is_spelled(method: str) -> None:
    world, app = World(), Counting()
    middleware = asgi.IdempotencyMiddleware(app, safe=world.safe, scope=who)
    first, again, other = [await call(middleware, scope_of(one)) for one in (method, method, method.upper())]
    missing = await call(middleware, scope_of(method, key=None))
    assert (first.status, again.status, missing.status) == (201, 201, 400)
    assert again.headers["idempotent-replayed"] == other.headers["idempotent-replayed"] == "true"
    assert app.runs == 1
    assert [record.target for record in world.records] == [f"{method.upper()} /pay"]


async def test_a_listed_route_has_its_policy_in_every_spelling() -> None:
    app, listed = Counting(), {"PATCH /pay": Policy(mode="required")}
    options: Any = {"scope": who, "policy": Policy(mode="optional"), "routes": listed}
    around = asgi.IdempotencyMiddleware(app, safe=World().safe, **options)
    assert (await call(around, scope_of("patch", key=None))).status == 400
    assert WsgiCall(
        wsgi.IdempotencyMiddleware(Runs(), safe=World().safe, **options), key=None, REQUEST_METHOD="patch"
    ).line.startswith("400")
    assert app.runs == 0


async def test_a_status_is_served_in_every_spelling() -> None:
    options: Any = {"scope": who, "status_path": "/status"}
    around = asgi.IdempotencyMiddleware(Counting(), safe=World().safe, **options)
    assert (await call(around, scope_of("get", "/status/nothing"))).status == 404
    plain = wsgi.IdempotencyMiddleware(Runs(), safe=World().safe, **options)
    assert WsgiCall(plain, REQUEST_METHOD="get", PATH_INFO="/status/nothing").status == 404


def test_flask_runs_a_lower_case_patch_once() -> None:
    """Werkzeug dispatches `patch` to the view of PATCH."""
    runs: list[str] = []
    app = flask.Flask("shop")
    idempotency = Idempotency(app, safe=RetrySafe("memory://"), scope=lambda: "alice")

    @app.patch("/pay")
    @idempotency.protect()
    def pay() -> Any:
        runs.append(flask.request.method)
        return {"run": len(runs)}, 201

    def sent(key: str | None) -> WsgiCall:
        return WsgiCall(app.wsgi_app, key=key, REQUEST_METHOD="patch", SERVER_NAME="x", SERVER_PORT="80", **SCHEME)

    first, again, missing = sent("k1"), sent("k1"), sent(None)
    assert (first.status, again.status, missing.status) == (201, 201, 400)
    assert dict(again.headers)["idempotent-replayed"] == "true"
    assert runs == ["PATCH"]


SCHEME: Any = {"wsgi.url_scheme": "http"}


@pytest.mark.parametrize("edge", [True, False], ids=["edge", "decorator"])
async def test_quart_runs_a_lower_case_patch_once(edge: bool) -> None:
    runs: list[str] = []
    app = quart.Quart("shop")
    install(app, safe=RetrySafe("memory://"), scope=(lambda request: "alice") if edge else None)

    async def pay() -> Any:
        runs.append(quart.request.method)
        return {"run": len(runs)}, 201

    view = pay if edge else idempotent(lambda: "alice")(pay)
    app.add_url_rule("/pay", "pay", view, methods=["PATCH", "GET"])
    async with calling(app) as http:
        _spell(http, "patch")
        first, again = [await http.request("PATCH", "/pay", headers=keyed("k1")) for _ in range(2)]
        missing = await http.request("PATCH", "/pay")
        _spell(http, "get")
        read = await http.request("GET", "/pay")
    assert first.status_code == 201, first.text
    assert is_replay(first, again)
    assert is_problem(missing, 400, "missing-key")
    assert (read.status_code, read.json()) == (201, {"run": 2}), "a lower-case get needs no key"
    assert len(runs) == 2


def _spell(http: Any, method: str) -> None:
    """httpx sends every method in upper case; the application gets this one instead."""
    transport = http._transport
    inner = getattr(transport.app, "inner", transport.app)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "method": method}, receive, send)

    app.inner = inner  # type: ignore[attr-defined]  # so that it is spelled anew, not twice
    transport.app = app
