"""What a framework answers before any endpoint is entered (I37): the claim is withdrawn, and the same key may be
used for the corrected request. An answer of an endpoint is stored, whatever its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from tests.web.frameworks import django_project  # sets Django up, so it comes first

# isort: split
import fastapi
import flask
import litestar
import pydantic
import quart
import starlette.applications
import starlette.middleware
import starlette.requests
import starlette.responses
import starlette.routing
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from rest_framework import serializers
from rest_framework.decorators import api_view
from rest_framework.response import Response as RestResponse

import retrysafe.web.fastapi
import retrysafe.web.flask
import retrysafe.web.litestar
import retrysafe.web.quart
import retrysafe.web.starlette
from retrysafe import Policy, RetrySafe
from retrysafe.web import asgi, wsgi
from retrysafe.web.traffic import Quota

SCOPE: Callable[[Any], str] = lambda view: "alice"  # noqa: E731
RUNS: list[str] = []

Call = Callable[..., httpx.Response]


class Order(pydantic.BaseModel):
    amount: int


# One application in each framework -------------------------------------------------------------------
#
#   POST /pay       counts, 201                POST /slash/   counts, 201; the router knows it with its slash only
#   POST /moved     charges, then redirects    POST /order    takes {"amount": int}


def ran(what: str) -> str:
    RUNS.append(what)
    return f"{what} {len(RUNS)}"


def starlette_routes() -> list[Any]:
    def answering(what: str, status: int) -> Any:
        async def endpoint(request: starlette.requests.Request) -> starlette.responses.Response:
            headers = {"location": "/elsewhere"} if status == 307 else {}
            return starlette.responses.PlainTextResponse(ran(what), status, headers)

        return endpoint

    route = starlette.routing.Route
    return [
        route("/pay", answering("pay", 201), methods=["POST"]),
        route("/slash/", answering("slash", 201), methods=["POST"]),
        route("/moved", answering("moved", 307), methods=["POST"]),
        route("/missing", answering("missing", 404), methods=["POST"]),
        starlette.routing.Mount("/sub", routes=[route("/slash/", answering("sub", 201), methods=["POST"])]),
        starlette.routing.Mount("/foreign", app=starlette.responses.PlainTextResponse(b"no", 404)),
    ]


def starlette_app(safe: RetrySafe, **options: Any) -> Any:
    app = starlette.applications.Starlette(routes=starlette_routes())
    app.add_middleware(retrysafe.web.starlette.IdempotencyMiddleware, safe=safe, scope=SCOPE, **options)
    return app


def fastapi_app(safe: RetrySafe, **options: Any) -> Any:
    app = fastapi.FastAPI()
    retrysafe.web.fastapi.install(app, safe=safe, scope=SCOPE, **options)
    router = fastapi.APIRouter()

    @app.post("/pay", status_code=201)
    async def pay() -> str:
        return ran("pay")

    @app.post("/slash/", status_code=201)
    def slash() -> str:
        return ran("slash")

    @app.post("/moved")
    async def moved() -> Any:
        return fastapi.responses.RedirectResponse(f"/{ran('moved')}", 307)

    @app.post("/missing")
    async def missing() -> Any:
        raise fastapi.HTTPException(404, ran("missing"))

    @app.post("/order", status_code=201)
    async def order(order: Order) -> str:
        return ran(f"order {order.amount}")

    @router.post("/order", status_code=201)
    def included(order: Order) -> str:
        return ran(f"included {order.amount}")

    @app.post("/own")
    async def own() -> Any:
        """It charges, and then rejects the input itself."""
        raise fastapi.exceptions.RequestValidationError([{"loc": ("body",), "msg": ran("own"), "type": "own"}])

    app.include_router(router, prefix="/included")
    return app


def litestar_app(safe: RetrySafe, **options: Any) -> Any:
    @litestar.post("/pay")
    async def pay() -> str:
        return ran("pay")

    @litestar.post("/moved", status_code=307)
    async def moved() -> litestar.Response[str]:
        return litestar.Response(ran("moved"), headers={"location": "/elsewhere"})

    @litestar.post("/missing", sync_to_thread=True)
    def missing() -> str:
        raise litestar.exceptions.NotFoundException(ran("missing"))

    @litestar.post("/order", sync_to_thread=True)
    def order(data: litestar.params.JSONBody[Order]) -> str:
        return ran(f"order {data.amount}")

    @litestar.post("/own")
    async def own() -> str:
        raise litestar.exceptions.ValidationException(ran("own"))

    async def served(request: Any) -> litestar.Response[str]:
        return litestar.Response(ran("hooked"), status_code=404)

    @litestar.post("/hooked", before_request=served)
    async def hooked() -> str:
        return "never"

    app = litestar.Litestar([pay, moved, missing, order, own, hooked])
    retrysafe.web.litestar.install(app, safe=safe, scope=SCOPE, **options)
    return app


def quart_app(safe: RetrySafe, **options: Any) -> Any:
    app = quart.Quart("shop")
    retrysafe.web.quart.install(app, safe=safe, scope=SCOPE, **options)

    async def hooked() -> Any:
        return (ran("hooked"), 404) if quart.request.path == "/hooked" else None

    app.before_request(hooked)
    for at, status, headers in _ROUTES:
        app.add_url_rule(at, at, lambda at=at, told=(status, headers): (ran(at.strip("/")), *told), methods=["POST"])
    return app


def flask_app(safe: RetrySafe, **options: Any) -> Any:
    app = flask.Flask("shop")
    for at, status, headers in _ROUTES:
        app.add_url_rule(at, at, lambda at=at, told=(status, headers): (ran(at.strip("/")), *told), methods=["POST"])
    app.before_request(lambda: (ran("hooked"), 409) if flask.request.path == "/hooked" else None)
    return retrysafe.web.flask.IdempotencyMiddleware(app.wsgi_app, safe=safe, scope=SCOPE, **options)


_ROUTES: list[tuple[str, int, dict[str, str]]] = [
    ("/pay", 201, {}), ("/slash/", 201, {}), ("/moved", 307, {"location": "/elsewhere"}), ("/missing", 404, {})
]  # fmt: skip


def django_app(safe: RetrySafe, **options: Any) -> Any:
    return wsgi.IdempotencyMiddleware(get_wsgi_application(), safe=safe, scope=SCOPE, **options)


def django_asgi_app(safe: RetrySafe, **options: Any) -> Any:
    return asgi.IdempotencyMiddleware(get_asgi_application(), safe=safe, scope=SCOPE, **options)


def django_view(what: str, status: int) -> Any:
    headers = {"location": "/elsewhere"} if status == 307 else {}
    return lambda request: HttpResponse(ran(what), status=status, headers=headers)


class OrderSerializer(serializers.Serializer):  # type: ignore[misc]
    amount = serializers.IntegerField()


@api_view(["POST"])
def rest_order(request: Any) -> Any:
    ran("order")
    found = OrderSerializer(data=request.data)
    found.is_valid(raise_exception=True)
    return RestResponse(found.data, status=201)


urlpatterns = [
    path("pay", django_view("pay", 201)),
    path("slash/", django_view("slash", 201)),
    path("moved", django_view("moved", 307)),
    path("missing", django_view("missing", 404)),
    path("order", rest_order),
]


class Framework(NamedTuple):
    make: Callable[..., Any]
    redirects: int | None
    """The status of its router's redirect; None if it does not redirect."""
    wrong_method: bool
    """True if its router, and not an endpoint, answers 405."""


FRAMEWORKS = {
    "starlette": Framework(starlette_app, 307, True),
    "fastapi": Framework(fastapi_app, 307, True),
    "litestar": Framework(litestar_app, None, True),
    "quart": Framework(quart_app, 308, True),
    "flask": Framework(flask_app, 308, True),
    "django": Framework(django_app, 301, False),
    "django-asgi": Framework(django_asgi_app, 301, False),
}


# How they are called ---------------------------------------------------------------------------------


@pytest.fixture
def safe(sqlite_url: str) -> Iterator[RetrySafe]:
    with RetrySafe(sqlite_url) as opened:
        opened.migrate()
        yield opened


@contextmanager
def served(name: str, safe: RetrySafe, **options: Any) -> Iterator[Call]:
    """A function that sends one request."""
    RUNS.clear()
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["test"]):
        app = FRAMEWORKS[name].make(safe, **options)

        def call(at: str, key: str = "k", method: str = "POST", **body: Any) -> httpx.Response:
            headers = {"Idempotency-Key": key}
            if name in ("flask", "django"):
                with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as http:
                    return http.request(method, at, headers=headers, **body)
            return asyncio.run(looped(app, method, at, headers, body))

        async def looped(app: Any, *args: Any) -> httpx.Response:
            method, at, headers, body = args
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                told = await http.request(method, at, headers=headers, **body)
            await safe.async_store.aclose()
            return told

        yield call


def withdrawing() -> Policy:
    return Policy(invalid="withdraw")


everywhere = pytest.mark.parametrize("name", FRAMEWORKS)
validating = pytest.mark.parametrize(
    ("name", "at"), [("fastapi", "/order"), ("fastapi", "/included/order"), ("litestar", "/order")]
)
STORE, WITHDRAW = Policy(), withdrawing()


# Redirects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [STORE, WITHDRAW], ids=["store", "withdraw"])
@pytest.mark.parametrize("name", [name for name, one in FRAMEWORKS.items() if one.redirects])
def test_a_client_that_follows_the_routers_redirect_is_served(name: str, policy: Policy, safe: RetrySafe) -> None:
    """Before the fix it was stored, and the client always got 422, because another path is another request."""
    with served(name, safe, policy=policy) as call:
        redirect = call("/slash", content=b"{}")
        assert redirect.status_code == FRAMEWORKS[name].redirects
        followed = call(redirect.headers["location"], content=b"{}")
        again = call(redirect.headers["location"], content=b"{}")
    assert (followed.status_code, followed.headers.get("idempotent-replayed")) == (201, None)
    assert (again.content, again.headers["idempotent-replayed"]) == (followed.content, "true")
    assert RUNS == ["slash"]
    assert safe.counters == {"new": 2, "withdrawn": 1, "completed": 1, "replayed": 1}


def test_a_redirect_inside_a_mount_is_the_routers_too(safe: RetrySafe) -> None:
    with served("starlette", safe) as call:
        assert call("/sub/slash").status_code == 307
        assert call("/sub/slash/").status_code == 201


@everywhere
def test_a_handler_that_redirects_has_charged(name: str, safe: RetrySafe) -> None:
    with served(name, safe, policy=WITHDRAW) as call:
        first, again = call("/moved"), call("/moved")
    assert (first.status_code, again.status_code) == (307, 307)
    assert again.headers["idempotent-replayed"] == "true"
    assert RUNS == ["moved"]


# What is not there -----------------------------------------------------------------------------------


@everywhere
def test_what_the_router_does_not_find_is_withdrawn_if_so_wanted(name: str, safe: RetrySafe) -> None:
    with served(name, safe, policy=WITHDRAW) as call:
        assert call("/nothing").status_code == 404
        assert call("/pay").status_code == 201
    assert safe.counters["withdrawn"] == 1


@everywhere
def test_what_the_router_does_not_find_is_stored_otherwise(name: str, safe: RetrySafe) -> None:
    with served(name, safe) as call:
        first, again, other = call("/nothing"), call("/nothing"), call("/pay")
    assert (first.status_code, again.headers["idempotent-replayed"]) == (404, "true")
    assert (other.status_code, RUNS) == (422, [])


@everywhere
def test_a_404_of_the_endpoint_itself_is_its_answer(name: str, safe: RetrySafe) -> None:
    with served(name, safe, policy=WITHDRAW) as call:
        first, again = call("/missing"), call("/missing")
    assert (first.status_code, again.headers["idempotent-replayed"], RUNS) == (404, "true", ["missing"])


@pytest.mark.parametrize("name", [name for name, one in FRAMEWORKS.items() if one.wrong_method])
@pytest.mark.parametrize("policy", [STORE, WITHDRAW], ids=["store", "withdraw"])
def test_a_405_by_the_router(name: str, policy: Policy, safe: RetrySafe) -> None:
    with served(name, safe, policy=policy) as call:
        assert call("/pay", method="PUT").status_code == 405
        after = call("/pay")
    assert (after.status_code, len(RUNS)) == ((201, 1) if policy is WITHDRAW else (422, 0))


# What is invalid -------------------------------------------------------------------------------------


@validating
def test_a_corrected_body_may_use_the_key_again(name: str, at: str, safe: RetrySafe) -> None:
    with served(name, safe, policy=WITHDRAW) as call:
        wrong = [call(at, json={"amount": "much"}).status_code, call(at, content=b"{not json").status_code]
        right, again = call(at, json={"amount": 3}), call(at, json={"amount": 3})
    assert all(400 <= status < 500 for status in wrong)
    assert (right.status_code, again.headers["idempotent-replayed"], len(RUNS)) == (201, "true", 1)
    assert safe.counters == {"new": 3, "withdrawn": 2, "completed": 1, "replayed": 1}


@validating
def test_the_rejection_is_the_result_unless_said_otherwise(name: str, at: str, safe: RetrySafe) -> None:
    with served(name, safe) as call:
        wrong, again = call(at, json={"amount": "much"}), call(at, json={"amount": "much"})
        corrected = call(at, json={"amount": 3})
    assert (again.status_code, again.content) == (wrong.status_code, wrong.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert (corrected.status_code, RUNS) == (422, [])


@pytest.mark.parametrize("name", ["fastapi", "litestar"])
def test_an_endpoint_that_calls_its_request_invalid_was_entered(name: str, safe: RetrySafe) -> None:
    """The same exception, the same status: only the mark on the endpoint tells them apart."""
    with served(name, safe, policy=WITHDRAW) as call:
        first, again = call("/own"), call("/own")
    assert 400 <= first.status_code < 500
    assert (again.headers["idempotent-replayed"], RUNS) == ("true", ["own"])


def test_a_serializer_of_drf_runs_inside_its_view(safe: RetrySafe) -> None:
    with served("django", safe, policy=WITHDRAW) as call:
        first, again = call("/order", json={"amount": "much"}), call("/order", json={"amount": "much"})
    assert (first.status_code, again.headers["idempotent-replayed"], RUNS) == (400, "true", ["order"])


def test_a_rejection_too_large_to_be_kept_is_withdrawn_as_well(safe: RetrySafe) -> None:
    """FastAPI repeats what it was sent."""
    with served("fastapi", safe, policy=WITHDRAW.replace(max_answer=100)) as call:
        assert call("/order", json={"amount": "x" * 500}).status_code == 422
        assert call("/order", json={"amount": 3}).status_code == 201


# What cannot be known --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "at"), [("quart", "/hooked"), ("flask", "/hooked"), ("litestar", "/hooked"), ("starlette", "/foreign/x")]
)
def test_what_answers_in_an_endpoints_place_may_have_done_anything(name: str, at: str, safe: RetrySafe) -> None:
    with served(name, safe, policy=WITHDRAW) as call:
        first, again = call(at), call(at)
    assert first.status_code in (404, 409)
    assert again.headers["idempotent-replayed"] == "true"


class Copying:
    """Middleware that gives the application a copy of the scope: we never see what the router writes into it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(dict(scope), receive, send)


@pytest.mark.parametrize("at", ["/moved", "/missing"])
@pytest.mark.parametrize("how", ["a copy", "mounted, a copy", "a copy in a mount", "a copy in a router"])
def test_a_handler_is_not_taken_for_the_router_behind_a_copy(how: str, at: str, safe: RetrySafe) -> None:
    """Neither a copied scope nor the data of an outer router misleads the adapter."""
    RUNS.clear()
    ours = starlette.middleware.Middleware(
        retrysafe.web.starlette.IdempotencyMiddleware, safe=safe, scope=SCOPE, policy=WITHDRAW
    )
    copying = starlette.middleware.Middleware(Copying)
    plain = starlette_routes()
    if how == "a copy":
        app: Any = starlette.applications.Starlette(routes=plain, middleware=[ours, copying])
    elif how == "mounted, a copy":
        inner: Any = starlette.applications.Starlette(routes=plain, middleware=[ours, copying])
        app, at = starlette.applications.Starlette(routes=[starlette.routing.Mount("/sub", app=inner)]), f"/sub{at}"
    elif how == "a copy in a mount":
        inner = starlette.applications.Starlette(routes=plain, middleware=[copying])
        mounts = [starlette.routing.Mount("/sub", app=inner)]
        app, at = starlette.applications.Starlette(routes=mounts, middleware=[ours]), f"/sub{at}"
    else:
        inner = starlette.routing.Router(routes=plain, middleware=[copying])
        mounts = [starlette.routing.Mount("/sub", app=inner)]
        app, at = starlette.applications.Starlette(routes=mounts, middleware=[ours]), f"/sub{at}"
    with served_by(app, safe, at) as call:
        first, again = call(), call()
    assert (first.status_code, again.headers["idempotent-replayed"]) == (first.status_code, "true")
    assert first.status_code in (307, 404)
    assert len(RUNS) == 1


def test_a_route_that_was_added_later_is_watched_from_its_second_request_on(safe: RetrySafe) -> None:
    RUNS.clear()
    app = fastapi_app(safe, policy=WITHDRAW)

    async def story() -> list[int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            await http.post("/pay", headers={"Idempotency-Key": "first"})

            @app.post("/late", status_code=201)
            async def late(order: Order) -> str:
                return ran("late")

            told = []
            for key, amount in (("a", "x"), ("a", "1"), ("b", "x"), ("b", "1")):
                sent = await http.post("/late", headers={"Idempotency-Key": key}, json={"amount": amount})
                told.append(sent.status_code)
            await safe.async_store.aclose()
            return told

    assert asyncio.run(story()) == [422, 422, 422, 201]
    assert RUNS == ["pay", "late"]


# Beside the edge -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["decorator", "dependency"])
def test_a_route_that_claims_is_withdrawn_after_validation(safe: RetrySafe, form: str) -> None:
    app = fastapi.FastAPI()
    retrysafe.web.fastapi.install(app, safe=safe, policy=WITHDRAW)
    protect = retrysafe.web.fastapi.idempotent(scope=lambda: "alice")

    async def order(order: Order) -> str:
        return ran("order")

    if form == "decorator":
        app.post("/order", status_code=201)(protect(order))
    else:
        app.post("/order", status_code=201, dependencies=[fastapi.Depends(protect)])(order)

    RUNS.clear()
    with served_by(app, safe) as call:
        assert [call(json={"amount": amount}).status_code for amount in ("x", 3, 3)] == [422, 201, 201]
    assert RUNS == ["order"]
    assert safe.counters["withdrawn"] == 1


@pytest.mark.parametrize("form", ["decorator", "dependency"])
def test_a_transaction_is_rolled_back(safe: RetrySafe, sqlite_url: str, form: str) -> None:
    app = fastapi.FastAPI()
    retrysafe.web.fastapi.install(app, safe=safe, policy=WITHDRAW)
    asked = retrysafe.web.fastapi.idempotent(scope=lambda: "alice", strength="transaction", tx=sqlite_url)
    opened = fastapi.Depends(asked)

    def order(order: Order, tx: Any = opened) -> str:
        return ran("order")

    def decorated(order: Order, tx: Any) -> str:
        return ran("order")

    app.post("/order", status_code=201)(order if form == "dependency" else asked(decorated))

    RUNS.clear()
    with served_by(app, safe) as call:
        assert [call(json={"amount": amount}).status_code for amount in ("x", 3, 3)] == [422, 201, 201]
    assert RUNS == ["order"]
    assert safe.counters["withdrawn"] == 1


def test_the_quota_is_given_back(safe: RetrySafe) -> None:
    with served("starlette", safe, policy=WITHDRAW, quota=Quota(live=1)) as call:
        assert [call("/nothing", key=f"k{number}").status_code for number in range(3)] == [404] * 3
        assert call("/pay", key="a").status_code == 201
        assert call("/pay", key="b").status_code == 429


def test_observing_goes_on_as_before(safe: RetrySafe) -> None:
    with served("fastapi", safe, policy=Policy(mode="observe", invalid="withdraw")) as call:
        assert [call("/order", json={"amount": amount}).status_code for amount in ("x", 3)] == [422, 201]
    assert safe.counters.get("withdrawn") is None


@contextmanager
def served_by(app: Any, safe: RetrySafe, at: str = "/order") -> Iterator[Call]:
    async def sent(body: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            told = await http.post(at, headers={"Idempotency-Key": "k"}, **body)
        await safe.async_store.aclose()
        return told

    yield lambda **body: asyncio.run(sent(body))


assert django_project.OURS, "imported for what it sets up"
