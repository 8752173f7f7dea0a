"""The decorator for plain Starlette handlers."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from retrysafe import Answer, Key, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.starlette import add_problem_handlers, claim, idempotent
from tests.web.frameworks.calling import ALICE, calling, is_problem, is_replay, keyed

safe = RetrySafe("memory://")
RUNS: list[str] = []


class Bearer(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        token = conn.headers.get("authorization", "").removeprefix("Bearer ")
        return (AuthCredentials(["authenticated"]), SimpleUser(token)) if token in ("alice", "bob") else None


async def name(request: Request) -> str:
    return str(request.user.display_name)


@requires("authenticated")
@idempotent(scope=name)
async def pay(request: Request) -> Response:
    RUNS.append("pay")
    return JSONResponse(
        {"run": len(RUNS), "key": request.state.key.value, "sent": (await request.body()).decode()}, 201
    )


@requires("authenticated")
@idempotent(scope=lambda request: request.user.display_name)
def blocking(request: Request) -> Response:
    RUNS.append("blocking")
    return PlainTextResponse(f"run {len(RUNS)}")


class Things(HTTPEndpoint):
    @idempotent(scope=name)
    async def post(self, request: Request) -> Response:
        return JSONResponse({"run": len(RUNS)})


@idempotent(scope=name, strength="operation")
async def order(request: Request) -> Any:
    return Answer(201, {"order": request.state.key.value})


async def by_hand(request: Request) -> Response:
    key = await claim(request, request.user.display_name)
    RUNS.append("by hand")
    return PlainTextResponse(f"{key and key.scope} {len(RUNS)}")


app = Starlette(
    routes=[
        Route("/pay/{id}", pay, methods=["POST"]),
        Route("/blocking", blocking, methods=["POST"]),
        Route("/things", Things),
        Route("/orders", order, methods=["POST"]),
        Mount("/sub", routes=[Route("/hand/{id}", by_hand, methods=["GET", "POST"])]),
    ],
    middleware=[Middleware(IdempotencyMiddleware, safe=safe), Middleware(AuthenticationMiddleware, backend=Bearer())],
)
add_problem_handlers(app)


@pytest.mark.parametrize("path", ["/pay/7", "/blocking", "/things", "/sub/hand/8"])
async def test_it_runs_once_and_is_replayed(path: str) -> None:
    sent = keyed()
    RUNS.clear()
    async with calling(app) as http:
        first, again = [await http.post(path, headers=sent, content=b"body") for _ in range(2)]
    assert first.status_code < 300, first.text
    assert is_replay(first, again)
    assert len(RUNS) <= 1


async def test_who_is_refused_outside_meets_no_key() -> None:
    sent = keyed()
    async with calling(app) as http:
        await http.post("/pay/7", headers=sent)
        refused = await http.post("/pay/7", headers={"Idempotency-Key": sent["Idempotency-Key"]})
        assert refused.status_code == 403
        assert is_problem(await http.post("/pay/7", headers=ALICE), 400, "missing-key")


async def test_an_operations_answer_is_sent_as_it_is() -> None:
    async with calling(app) as http:
        told = await http.post("/orders", headers=keyed("o1"))
    assert (told.status_code, told.content) == (201, b'{"order":"o1"}')


async def test_a_get_is_left_alone() -> None:
    async with calling(app) as http:
        assert (await http.get("/sub/hand/8", headers=ALICE)).text.startswith("None ")


@pytest.mark.parametrize(("path", "target"), [("/pay/9", "POST /pay/{id}"), ("/sub/hand/9", "POST /sub/hand/{id}")])
async def test_the_target_is_the_route(path: str, target: str) -> None:
    sent = keyed()
    async with calling(app) as http:
        await http.post(path, headers=sent)
    found = await safe.aexecute(Lookup(Key(sent["Idempotency-Key"], "alice").id(safe.namespace)))
    assert found.record is not None
    assert found.record.target == target


@pytest.mark.parametrize("how", ["decorator", "inner call", "endpoint class"])
async def test_what_stands_around_the_handler_does_not_go_on_after_a_replay(how: str) -> None:
    """Only the route may take a stored answer for the handler's: other code would do once more what it does then."""
    mails: list[str] = []

    @idempotent(scope=lambda request: "a")
    async def pay(request: Request) -> Response:
        return PlainTextResponse("paid")

    @functools.wraps(pay)
    async def pay_and_mail(request: Request) -> Response:
        answer = await pay(request)
        mails.append("paid")
        return answer

    class Payments(HTTPEndpoint):
        async def post(self, request: Request) -> Response:
            return await pay_and_mail(request)

    async def post(request: Request) -> Response:
        return await pay_and_mail(request)

    endpoint = {"decorator": pay_and_mail, "inner call": post, "endpoint class": Payments}[how]
    around = Starlette(
        routes=[Route("/pay", endpoint, methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, safe=RetrySafe("memory://"))],
    )
    async with calling(around) as http:
        first, again = [await http.post("/pay", headers=keyed("k")) for _ in range(2)]
    assert is_replay(first, again)
    assert mails == ["paid"]
