"""The FastAPI decorator claims before the body is parsed, so a replay ends early. What could have refused the caller
must have run by then: each test is a way in which an early replay could answer somebody it must not answer."""
# Without postponed annotations: those of endpoints name what is local to a test.

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Body,
    Cookie,
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
    Security,
    UploadFile,
    WebSocket,
)
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import SecurityScopes
from pydantic import BaseModel, field_validator
from starlette.testclient import TestClient

from retrysafe import Policy
from retrysafe.web import fastapi_early, fastapi_routes
from retrysafe.web.fastapi import AnswerRoute, idempotent
from retrysafe.web.fastapi_routes import walk_routes
from tests.web.frameworks.calling import ALICE, BOB, calling, is_problem, is_replay, keyed
from tests.web.frameworks.test_fastapi import World

validated: list[int] = []


class Order(BaseModel):
    amount: int

    @field_validator("amount")
    @classmethod
    def note(cls, amount: int) -> int:
        validated.append(amount)
        return amount


@pytest.fixture
def world() -> World:
    validated.clear()
    return World()


def is_early(app: FastAPI, path: str = "/pay") -> bool:
    (route,) = [route for _, route in walk_routes(app.routes) if route.path == path]
    return route.app.early is not None


def add_pay(world: World, app: Any = None, path: str = "/pay", **options: Any) -> None:
    async def pay(order: Order) -> dict[str, int]:
        return world.ran()

    (app or world.app).post(path, **options)(idempotent(world.account)(pay))


async def pay_twice(app: Any, path: str = "/pay", **second: Any) -> tuple[httpx.Response, httpx.Response]:
    """The same request twice; of the second, something may be different."""
    sent: dict[str, Any] = {"headers": keyed("k"), "json": {"amount": 3}}
    async with calling(app) as http:
        return await http.post(path, **sent), await http.post(path, **{**sent, **second})


class Gate:
    """A check that is part of no scope: who may pay is known apart from who it is."""

    def __init__(self) -> None:
        self.open = True
        self.asked = 0

    def check(self) -> None:
        self.asked += 1
        if not self.open:
            raise HTTPException(403, "closed")


async def pay_at_a_gate(world: World, gate: Gate, path: str = "/pay") -> None:
    """Pays, is answered again; then the gate is closed, and there is no stored answer any more."""
    first, again = await pay_twice(world.app, path)
    assert is_replay(first, again)
    gate.open = False
    async with calling(world.app) as http:
        refused = await http.post(path, headers=keyed("k"), json={"amount": 3})
    assert (refused.status_code, refused.json()) == (403, {"detail": "closed"})
    assert "idempotent-replayed" not in refused.headers
    assert gate.asked == 3
    assert len(world.runs) == 1


# The early way ------------------------------------------------------------------------------------------


async def test_the_body_of_a_replay_is_not_validated_again(world: World) -> None:
    add_pay(world)
    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    assert is_early(world.app)
    assert validated == [3]


async def test_another_body_is_not_answered(world: World) -> None:
    add_pay(world)
    _, other = await pay_twice(world.app, json={"amount": 4})
    assert is_problem(other, 422, "mismatch")


async def test_an_invalid_body_does_not_get_the_answer_of_a_valid_one(world: World) -> None:
    add_pay(world)
    for wrong in ('{"amount": "much"}', "{", "[]", ""):
        _, other = await pay_twice(world.app, json=None, content=wrong)
        assert is_problem(other, 422, "mismatch")
    assert len(world.runs) == 1


# Who asks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["nobody", "unknown", "revoked"])
async def test_whoever_is_not_authenticated_gets_no_stored_answer(world: World, who: str) -> None:
    add_pay(world)
    first, _ = await pay_twice(world.app)
    if who == "revoked":
        world.forbidden.add("alice")
    authorization = {"nobody": "", "unknown": "Bearer mallory", "revoked": "Bearer alice"}[who]
    _, again = await pay_twice(world.app, headers={"Idempotency-Key": "k", "Authorization": authorization})
    assert again.status_code == (403 if who == "revoked" else 401)
    assert "idempotent-replayed" not in again.headers
    assert first.content not in again.content


async def test_another_tenant_with_the_same_key_runs_its_own(world: World) -> None:
    add_pay(world)
    first, other = await pay_twice(world.app, headers={"Idempotency-Key": "k", **BOB})
    assert (first.json(), other.json()) == ({"run": 1}, {"run": 2})
    assert "idempotent-replayed" not in other.headers


async def test_another_route_with_the_same_key_is_a_mismatch(world: World) -> None:
    add_pay(world)
    add_pay(world, path="/refund")
    await pay_twice(world.app)
    async with calling(world.app) as http:
        other = await http.post("/refund", headers=keyed("k"), json={"amount": 3})
    assert is_problem(other, 422, "mismatch")
    assert len(world.runs) == 1


# Whatever may refuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["argument", "route", "router", "included", "nested", "app", "mounted"])
async def test_a_dependency_that_refuses_comes_before_a_replay(world: World, where: str) -> None:
    gate = Gate()
    refusing = [Depends(gate.check)]
    if where == "argument":

        @world.app.post("/pay")
        @idempotent(world.account)
        async def pay(order: Order, allowed: Annotated[None, Depends(gate.check)]) -> dict[str, int]:
            return world.ran()

    elif where == "route":
        add_pay(world, dependencies=refusing)
    elif where == "app":
        world.app.router.dependencies.extend(refusing)
        add_pay(world)
    elif where == "mounted":
        inner = FastAPI(dependencies=refusing)
        add_pay(world, inner)
        world.app.mount("/sub", inner)
    else:
        router = APIRouter(dependencies=refusing if where == "router" else [])
        add_pay(world, router)
        if where == "nested":
            outer = APIRouter()
            outer.include_router(router, prefix="/in", dependencies=refusing)
            world.app.include_router(outer, prefix="/sub")
        else:
            world.app.include_router(router, prefix="/sub", dependencies=refusing if where == "included" else [])
    prefix = {"router": "/sub", "included": "/sub", "nested": "/sub/in", "mounted": "/sub"}.get(where, "")
    await pay_at_a_gate(world, gate, f"{prefix}/pay")
    assert validated == [3]


async def test_one_router_included_twice_keeps_the_checks_of_each(world: World) -> None:
    gate, router = Gate(), APIRouter()
    add_pay(world, router)
    world.app.include_router(router, prefix="/open")
    world.app.include_router(router, prefix="/guarded", dependencies=[Depends(gate.check)])
    await pay_at_a_gate(world, gate, "/guarded/pay")
    first, again = await pay_twice(world.app, "/open/pay", headers=keyed("k2"))
    assert is_problem(first, 422, "mismatch")
    assert again.json() == {"run": 2}


async def test_security_scopes_come_before_a_replay(world: World) -> None:
    granted = {"pay"}

    def check(needed: SecurityScopes, account: Annotated[str, Depends(world.account)]) -> str:
        if not granted.issuperset(needed.scopes):
            raise HTTPException(403, "closed")
        return account

    @world.app.post("/pay")
    @idempotent(Security(check, scopes=["pay"]))
    async def pay(order: Order) -> dict[str, int]:
        return world.ran()

    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    granted.clear()
    _, refused = await pay_twice(world.app)
    assert refused.json() == {"detail": "closed"}
    assert is_early(world.app)


async def test_a_decorator_above_ours_comes_before_a_replay(world: World) -> None:
    gate = Gate()

    def guarded(endpoint: Any) -> Any:
        @functools.wraps(endpoint)
        async def check_and_call(*args: Any, **kwargs: Any) -> Any:
            gate.check()
            return await endpoint(*args, **kwargs)

        return check_and_call

    @world.app.post("/pay")
    @guarded
    @idempotent(world.account)
    async def pay(order: Order) -> dict[str, int]:
        return world.ran()

    await pay_at_a_gate(world, gate)
    assert not is_early(world.app)


@pytest.mark.parametrize("wrong", ["replay", "no key"])
async def test_a_decorator_above_ours_does_not_go_on_without_the_endpoint(world: World, wrong: str) -> None:
    """It would do once more what it does after the endpoint."""
    mails: list[str] = []

    def mail_after(endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(endpoint)
        async def call_and_mail(**values: Any) -> Any:
            answer = await endpoint(**values)
            mails.append("paid")
            return answer

        return call_and_mail

    @world.app.post("/pay")
    @mail_after
    @idempotent(world.account)
    async def pay(order: Order) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        first = await http.post("/pay", headers=keyed("k"), json={"amount": 1})
        again = await http.post("/pay", headers=keyed("k") if wrong == "replay" else ALICE, json={"amount": 1})
    assert is_replay(first, again) if wrong == "replay" else is_problem(again, 400, "missing-key")
    assert mails == ["paid"]


async def test_on_an_answer_route_dependencies_with_yield_end_as_usual(world: World) -> None:
    ended: list[str] = []

    async def session() -> AsyncIterator[None]:
        try:
            yield
        except HTTPException:
            ended.append("raised")
            raise
        ended.append("as usual")

    router = APIRouter(route_class=AnswerRoute, dependencies=[Depends(session)])

    @router.post("/pay")
    @idempotent(world.account)
    async def pay(order: Order) -> dict[str, int]:
        return world.ran()

    world.app.include_router(router)
    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    assert ended == ["as usual", "as usual"]


@pytest.mark.parametrize("how", ["route class", "wrapped application"])
async def test_what_stands_around_the_handler_comes_before_a_replay(world: World, how: str) -> None:
    gate = Gate()

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            inner = super().get_route_handler()

            async def check_and_handle(request: Request) -> Response:
                gate.check()
                return await inner(request)

            return check_and_handle

    if how == "route class":
        world.app.router.route_class = Guarded
        add_pay(world)
    else:
        add_pay(world)
        (route,) = [route for _, route in walk_routes(world.app.routes) if route.path == "/pay"]
        inner = route.app

        async def check_and_run(scope: Any, receive: Any, send: Any) -> Any:
            try:
                gate.check()
            except HTTPException as refused:
                return await Response('{"detail":"closed"}', refused.status_code)(scope, receive, send)
            return await inner(scope, receive, send)

        route.app = check_and_run
    await pay_at_a_gate(world, gate)
    assert not is_early(world.app)


@pytest.mark.parametrize("where", ["header", "cookie", "query"])
async def test_an_argument_outside_of_the_fingerprint_is_validated_before_a_replay(world: World, where: str) -> None:
    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(
        order: Order,
        code: Annotated[str, {"header": Header, "cookie": Cookie, "query": Query}[where](pattern="^secret$")],
    ) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:

        async def send(code: str) -> httpx.Response:
            headers = keyed("k", **({"code": code} if where == "header" else {}))
            if where == "cookie":
                headers["Cookie"] = f"code={code}"
            asked = {"code": code} if where == "query" else {}
            return await http.post("/pay", headers=headers, params=asked, json={"amount": 3})

        first, again, wrong = await send("secret"), await send("secret"), await send("guess")
    assert is_replay(first, again)
    assert is_early(world.app)
    assert wrong.status_code == 422
    assert "idempotent-replayed" not in wrong.headers
    assert len(world.runs) == 1


@pytest.mark.parametrize("way", ["early", "whole", "dependency"])
@pytest.mark.parametrize("refusing", ["missing header", "wrong header", "own rejection"])
@pytest.mark.parametrize("also", ["", "invalid body"])
async def test_a_check_that_was_not_asked_or_that_rejects_answers_nothing_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str, refusing: str, also: str
) -> None:
    """A dependency is not called where its own header is missing. It may also refuse as FastAPI rejects."""
    if way == "whole":
        monkeypatch.setattr(fastapi_routes, "find_early_claim", lambda whole, route: None)

    def may_pay(x_role: Annotated[int, Header()]) -> None:
        if x_role != 7:
            raise RequestValidationError([{"loc": ("body",), "msg": "not yours", "type": "refused"}])

    async def pay(order: Annotated[dict[str, int], Body()]) -> dict[str, int]:
        return world.ran()

    protect = idempotent(world.account, Policy(invalid="store"))
    if way == "dependency":
        world.app.post("/pay", dependencies=[Depends(may_pay), Depends(protect)])(pay)
    else:
        world.app.post("/pay", dependencies=[Depends(may_pay)])(protect(pay))
    allowed = keyed("k", **{"x-role": "7"})
    refused = {"missing header": {}, "wrong header": {"x-role": "seven"}, "own rejection": {"x-role": "8"}}[refusing]
    async with calling(world.app) as http:

        async def send(headers: dict[str, str]) -> httpx.Response:
            return await http.post("/pay", headers=headers, json={"amount": "much" if also else 3})

        first, again, other = await send(allowed), await send(allowed), await send(keyed("k", **refused))
    assert first.status_code == (422 if also else 200)
    assert is_replay(first, again)
    assert other.status_code == 422
    assert "idempotent-replayed" not in other.headers
    assert other.content != first.content


async def test_overridden_dependencies_are_asked_as_always(world: World) -> None:
    gate = Gate()

    def allowed() -> None:
        raise AssertionError("it is overridden")

    add_pay(world, dependencies=[Depends(allowed)])
    world.app.dependency_overrides[allowed] = gate.check
    await pay_at_a_gate(world, gate)


async def test_an_override_may_ask_for_anything(world: World) -> None:
    def by_body(amount: Annotated[int, Body(embed=True)], response: Response, tasks: BackgroundTasks) -> str:
        response.headers["x-amount"] = str(amount)
        return "a"

    add_pay(world)
    await pay_twice(world.app)
    world.app.dependency_overrides[world.account] = by_body
    async with calling(world.app) as http:
        told = await http.post("/pay", headers={"Idempotency-Key": "other"}, json={"amount": 3, "order": {"amount": 3}})
    assert told.status_code == 200, told.text


# What else runs with a request -----------------------------------------------------------------------------


async def test_dependencies_with_yield_end_as_usual(world: World) -> None:
    seen: list[str] = []

    async def session() -> AsyncIterator[str]:
        seen.append("begun")
        try:
            yield "session"
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        seen.append("ended")

    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(order: Order, db: Annotated[str, Depends(session)]) -> dict[str, str]:
        seen.append(f"ran with {db}")
        if order.amount == 13:
            raise HTTPException(418)
        return {"db": db}

    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    assert is_early(world.app)
    assert seen == ["begun", "ran with session", "ended", "begun", "ended"]
    seen.clear()
    async with calling(world.app) as http:
        failed = await http.post("/pay", headers=keyed(), json={"amount": 13})
    assert failed.status_code == 418
    assert seen == ["begun", "ran with session", "HTTPException"]


async def test_background_tasks_run_once(world: World) -> None:
    done: list[str] = []

    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(order: Order, tasks: BackgroundTasks) -> dict[str, int]:
        tasks.add_task(done.append, "mail")
        return world.ran()

    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    assert is_early(world.app)
    assert done == ["mail"]


async def test_the_answer_is_made_as_always(world: World) -> None:
    class Receipt(BaseModel):
        amount: int

    @world.app.post("/pay", status_code=201, response_model=Receipt)
    @idempotent(world.account)
    def pay(order: Order, response: Response, request: Request, at: int = 0) -> dict[str, Any]:
        response.headers["x-path"] = request.url.path
        response.status_code = 202
        return {"amount": order.amount + at, "secret": "x"}

    first, again = await pay_twice(world.app, "/pay?at=4")
    assert (first.status_code, first.json(), first.headers["x-path"]) == (202, {"amount": 7}, "/pay")
    assert is_replay(first, again)
    assert again.headers["x-path"] == "/pay"
    assert is_early(world.app)


async def test_a_dependency_that_gives_something_to_the_answer_goes_the_whole_way(world: World) -> None:
    done: list[str] = []

    def note(response: Response, tasks: BackgroundTasks) -> None:
        response.headers["x-noted"] = "yes"
        tasks.add_task(done.append, "noted")

    add_pay(world, dependencies=[Depends(note)])
    first, again = await pay_twice(world.app)
    assert first.headers["x-noted"] == "yes"
    assert is_replay(first, again)
    assert done[0] == "noted"
    assert not is_early(world.app)


@pytest.mark.parametrize("reading", ["body", "json", "stream", "model"])
@pytest.mark.parametrize("also", ["body argument", "no body argument"])
async def test_a_dependency_may_read_the_body(world: World, reading: str, also: str) -> None:
    async def amount_of(request: Request) -> str:
        if reading == "stream":
            text = b"".join([chunk async for chunk in request.stream()])
        else:
            text = await request.body() if reading == "body" else str(await request.json()).encode()
        if b"amount" not in text:
            raise HTTPException(403)
        return "a"

    async def amount_of_model(order: Order) -> str:
        return "a"

    protect = idempotent(amount_of_model if reading == "model" else amount_of)
    if also == "body argument":

        @world.app.post("/pay")
        @protect
        async def pay(order: Order) -> dict[str, int]:
            return world.ran()

    else:

        @world.app.post("/pay")
        @protect
        async def pay_nothing(at: int = 0) -> dict[str, int]:
            return world.ran()

    first, again = await pay_twice(world.app)
    assert first.json() == {"run": 1}
    assert is_replay(first, again)
    assert is_early(world.app) == (reading != "model")
    async with calling(world.app) as http:  # what is invalid beside the body that was read
        wrong = await http.post("/pay?at=x", headers=keyed(), json={"amount": "much"})
    assert wrong.status_code == 422


async def test_forms_and_uploads_go_the_whole_way(world: World) -> None:
    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(note: Annotated[str, Form()], image: Annotated[UploadFile, File()]) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent: Any = {"headers": keyed("k"), "data": {"note": "n"}, "files": {"image": ("a.png", b"1234")}}
        first, again = [await http.post("/pay", **sent) for _ in range(2)]
    assert is_replay(first, again)
    assert not is_early(world.app)


async def test_an_answer_in_parts_is_sent_in_parts(world: World) -> None:
    @world.app.post("/pay", response_class=StreamingResponse)
    @idempotent(world.account)
    async def pay(order: Order) -> StreamingResponse:
        world.ran()
        return StreamingResponse(iter([b"a", b"b"]))

    first, again = await pay_twice(world.app)
    assert first.content == b"ab"
    assert is_replay(first, again)
    assert is_early(world.app)


async def test_an_answer_route_goes_the_whole_way(world: World) -> None:
    world.app.router.route_class = AnswerRoute
    add_pay(world)
    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    assert not is_early(world.app)


def test_websockets_are_untouched(world: World) -> None:
    add_pay(world)

    @world.app.websocket("/pay")
    async def chat(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    with TestClient(world.app) as http, http.websocket_connect("/pay") as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize("way", ["early", "whole", "dependency"])
@pytest.mark.parametrize("wrong", ["query", "body"])
async def test_a_fingerprint_of_the_users_covers_only_the_path(way: str, wrong: str) -> None:
    """A check whose query is missing was not asked, and no check is if the body is not JSON."""
    world = World(fingerprint=lambda view, body: b"the same")

    def may_pay(role: Annotated[int, Query()]) -> None:
        if role != 7:
            raise HTTPException(403)

    def may_pay_whole(role: Annotated[int, Query()], response: Response) -> None:
        may_pay(role)

    async def pay(order: Order) -> dict[str, int]:
        return world.ran()

    protect = idempotent(world.account)
    if way == "dependency":
        world.app.post("/pay", dependencies=[Depends(may_pay), Depends(protect)])(pay)
    else:
        check = may_pay if way == "early" else may_pay_whole
        world.app.post("/pay", dependencies=[Depends(check)])(protect(pay))
    headers = keyed("k", **{"Content-Type": "application/json"})
    async with calling(world.app) as http:

        async def send(query: str, content: str = '{"amount": 1}') -> httpx.Response:
            return await http.post(f"/pay{query}", headers=headers, content=content)

        first, again = await send("?role=7"), await send("?role=7")
        refused = await (send("") if wrong == "query" else send("?role=8", "{"))
    assert is_replay(first, again)
    assert is_early(world.app) == (way == "early") if way != "dependency" else True
    assert refused.status_code in (403, 422)
    assert "idempotent-replayed" not in refused.headers
    assert "run" not in refused.json()
    assert len(world.runs) == 1


# What an invalid request is told ----------------------------------------------------------------------------


@pytest.mark.parametrize("life", ["function", "request"])
async def test_an_invalid_request_holds_the_contexts_of_its_dependencies_once(world: World, life: Any) -> None:
    """A pool with one connection: whoever asks for a second while it holds the first waits for ever."""
    held: list[int] = [0]
    log: list[Any] = []

    async def connection() -> AsyncIterator[int]:
        held[0] += 1
        log.append(held[0])
        try:
            yield held[0]
        except RequestValidationError:
            log.append("rejected")
            raise
        finally:
            held[0] -= 1

    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(order: Order, at: int, one: Annotated[int, Depends(connection, scope=life)]) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        wrong = await http.post("/pay?at=x", headers=keyed("k"), json={"amount": 1})
    assert is_early(world.app)
    assert wrong.status_code == 422
    assert held == [0]
    assert set(log) == {1, "rejected"}


@pytest.mark.parametrize("how", ["converted", "swallowed"])
async def test_a_dependency_may_answer_a_rejection_in_its_own_words(world: World, how: str) -> None:
    async def convert() -> AsyncIterator[None]:
        try:
            yield
        except RequestValidationError:
            if how == "converted":
                raise HTTPException(400, "write numbers") from None

    @world.app.post("/pay", dependencies=[Depends(convert)])
    @idempotent(world.account)
    async def pay(order: Order, at: int) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        wrong = await http.post("/pay?at=x", headers=keyed("k"), json={"amount": 1})
    assert is_early(world.app)
    assert wrong.status_code == (400 if how == "converted" else 500)
    assert not world.runs


async def test_everything_that_is_invalid_is_told_at_once(world: World) -> None:
    @world.app.post("/pay/{id}")
    @idempotent(world.account)
    async def pay(id: int, order: Order, x_at: Annotated[int, Header()]) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent: Any = {"headers": keyed("k", **{"x-at": "1"}), "json": {"amount": "much"}}
        wrong, again = [await http.post("/pay/a", **sent) for _ in range(2)]
        worse = await http.post("/pay/a", headers=keyed("k", **{"x-at": "c"}), json=sent["json"])
    assert [one["loc"][0] for one in wrong.json()["detail"]] == ["path", "body"]
    assert is_replay(wrong, again)
    assert [one["loc"][0] for one in worse.json()["detail"]] == ["path", "header", "body"]


@pytest.mark.parametrize("invalid", ["store", "withdraw"])
@pytest.mark.parametrize("wrong", ["{", '{"amount": "much"}', "broken query"])
async def test_a_rejection_leaves_behind_what_the_policy_says(invalid: Any, wrong: str) -> None:
    world = World(policy=Policy(invalid=invalid))

    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(order: Order, at: int = 0) -> dict[str, int]:
        return world.ran()

    @world.app.post("/empty")
    @idempotent(world.account)
    async def pay_nothing(at: int = 0) -> dict[str, int]:
        return world.ran()

    path, content = ("/empty?at=x", "") if wrong == "broken query" else ("/pay", wrong)
    async with calling(world.app) as http:
        headers = keyed("k", **{"Content-Type": "application/json"})
        first, again = [await http.post(path, headers=headers, content=content) for _ in range(2)]
        right = await http.post(path.partition("?")[0], headers=headers, content='{"amount": 1}')
    assert first.status_code == 422
    assert first.content == again.content
    assert ("idempotent-replayed" in again.headers) == (invalid == "store")
    if invalid == "store":
        assert is_problem(right, 422, "mismatch")
    else:
        assert right.json() == {"run": 1}


# Both ways are one ------------------------------------------------------------------------------------------


def build_shop(world: World, gate: Gate, log: list[str]) -> FastAPI:
    async def session() -> AsyncIterator[str]:
        log.append("open")
        try:
            yield "s"
        finally:
            log.append("close")

    @world.app.post("/orders/{id}", status_code=201, dependencies=[Depends(gate.check)])
    @idempotent(world.account)
    async def order(
        id: int, order: Order, db: Annotated[str, Depends(session)], x: Annotated[int, Header()] = 0, at: int = 0
    ) -> dict[str, Any]:
        if order.amount == 500:
            raise RuntimeError("boom")
        if order.amount == 418:
            raise HTTPException(418, "teapot")
        return {**world.ran(), "x": x, "at": at, "id": id}

    @world.app.put("/plain", response_model=None)
    @idempotent(world.account, Policy(mode="optional", failures="release"))
    def plain(who: Annotated[str, Depends(world.account)]) -> Response:
        return Response(f"{who} {world.ran()}", media_type="text/plain")

    @world.app.post("/raw")
    @idempotent(world.account)
    async def raw(body: Annotated[list[int] | None, Body()] = None) -> Any:
        return body

    return world.app


TRAFFIC: list[tuple[str, str, Any, dict[str, str]]] = [
    (method, path, content, {**who, **({"Idempotency-Key": key} if key else {}), **more})
    for key in ("k1", "k2", '"k1"', "", "bad key,")
    for who in (ALICE, BOB, {})
    for method, path, content, more in [
        ("POST", "/orders/7", b'{"amount": 3}', {}),
        ("POST", "/orders/7", b'{ "amount":3 }', {"x": "4"}),
        ("POST", "/orders/7?at=2", b'{"amount": 3}', {"x": "four"}),
        ("POST", "/orders/seven", b'{"amount": 3}', {}),
        ("POST", "/orders/7", b'{"amount": "much"}', {}),
        ("POST", "/orders/7", b"{", {}),
        ("POST", "/orders/7", b'{"amount": 500}', {}),
        ("POST", "/orders/7", b'{"amount": 418}', {}),
        ("PUT", "/plain", b"", {}),
        ("PUT", "/plain", b"something", {}),
        ("POST", "/raw", b"[1, 2]", {}),
        ("POST", "/raw", b"", {}),
        ("GET", "/plain", b"", {}),
        ("POST", "/nowhere", b"", {}),
    ]
]


@pytest.mark.parametrize("invalid", ["store", "withdraw"])
@pytest.mark.parametrize("fresh", [True, False])
async def test_the_early_way_and_the_whole_way_answer_alike(
    monkeypatch: pytest.MonkeyPatch, invalid: Any, fresh: bool
) -> None:
    """Each request three times, the third beside a closed gate: same answers, runs and contexts of dependencies.
    `fresh`: each kind of request has keys of its own; otherwise they meet under one.

    One thing differs on purpose. FastAPI parses the body before it asks the dependencies, so whoever sends no JSON is
    told that first. The early way asks the dependencies first."""

    async def play() -> list[Any]:
        world, gate, log = World(policy=Policy(invalid=invalid)), Gate(), list[str]()
        app, told = build_shop(world, gate, log), list[Any]()
        async with calling(app) as http:
            for number, (method, path, content, headers) in enumerate(TRAFFIC):
                sent = {"Content-Type": "application/json", **headers}
                if fresh and "Idempotency-Key" in sent:
                    sent["Idempotency-Key"] = sent["Idempotency-Key"].replace("k", f"k{number % 42}x")
                for turn in range(3):
                    gate.open = turn < 2
                    answer = await http.request(method, path, content=content, headers=sent)
                    told.append((number, answer.status_code, answer.headers.multi_items(), answer.content))
        return [*told, world.runs, log.count("open"), log.count("close")]

    early = await play()
    monkeypatch.setattr(fastapi_routes, "find_early_claim", lambda whole, route: None)
    whole = await play()
    unparsed = {number for number, (_, _, content, _) in enumerate(TRAFFIC) if content == b"{"}
    for one, other in zip(early[:-3], whole[:-3], strict=True):
        assert one == other or (one[0] in unparsed and one[1] in (401, 403))
    assert early[-3] == whole[-3]
    assert early[-2] == early[-1]


async def test_versions_of_fastapi_that_it_does_not_know_go_the_whole_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastapi_early, "_can_solve", lambda: False)
    add_pay(world)
    first, again = await pay_twice(world.app)
    assert is_replay(first, again)
    assert not is_early(world.app)


async def test_a_fastapi_that_keeps_the_contexts_to_itself_goes_the_whole_way(world: World) -> None:
    add_pay(world)
    await pay_twice(world.app)
    (route,) = [route for _, route in walk_routes(world.app.routes) if route.path == "/pay"]
    request = Request({"type": "http", "method": "POST", "path": "/pay", "headers": []})
    assert await route.app.early._claim_and_run(request) == route.app._run_whole
