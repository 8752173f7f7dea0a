"""FastAPI, protected by the decorator and by the dependency: both stand on the application's own authentication."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, Response, Security
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from pydantic import BaseModel

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.engine.guard import Ended
from retrysafe.errors import (
    FingerprintMismatch,
    InProgress,
    NotFinished,
    OutcomeUnknown,
    RetrySafeError,
    StoreUnavailable,
    UsageError,
)
from retrysafe.web import asgi
from retrysafe.web.fastapi import AnswerRoute, add_problem_handlers, idempotent, install, respond
from tests.web.frameworks.calling import ALICE, BOB, calling, is_problem, is_replay, keyed

bearer = HTTPBearer(auto_error=False)


class World:
    """An application, and a record of its calls."""

    def __init__(self, form: str = "decorator", **options: Any) -> None:
        self.form = form
        self.safe = RetrySafe("memory://")
        self.app = FastAPI()
        self.accounts = {"alice": "a", "bob": "b"}
        self.forbidden: set[str] = set()
        self.runs: list[str] = []
        install(self.app, safe=self.safe, **options)

    def account(self, who: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> str:
        if who is None or who.credentials not in self.accounts:
            raise HTTPException(401, "unknown", {"WWW-Authenticate": "Bearer"})
        if who.credentials in self.forbidden:
            raise HTTPException(403, "not any more")
        return self.accounts[who.credentials]

    def protect(self, policy: Policy | None = None, **options: Any) -> Any:
        return Depends(idempotent(self.account, policy, **options))

    def post(self, path: str, policy: Policy | None = None, **options: Any) -> Callable[[Any], Any]:
        """`@app.post(path)` for an endpoint that is protected in this world's way."""
        given = {name: options.pop(name) for name in ("scope", "strength", "app") if name in options}
        app = given.pop("app", self.app)
        protect = idempotent(given.pop("scope", self.account), policy, **given)

        def add(endpoint: Any) -> Any:
            if self.form == "decorator":
                app.post(path, **options)(protect(endpoint))
            else:
                before = options.pop("dependencies", [])
                app.post(path, dependencies=[*before, Depends(protect)], **options)(endpoint)
            return endpoint

        return add

    def ran(self, what: str = "pay") -> dict[str, int]:
        self.runs.append(what)
        return {"run": len(self.runs)}

    async def record(self, key: str, account: str = "a") -> Any:
        found = await self.safe.aexecute(Lookup(Key(key, account).id(self.safe.namespace)))
        return found.record


@pytest.fixture(params=["decorator", "dependency"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.safe.close()


def add_pay(world: World, policy: Policy | None = None) -> None:
    @world.post("/pay", policy, status_code=201)
    async def pay() -> dict[str, int]:
        return world.ran()


# Who may see an answer --------------------------------------------------------------------------


async def test_the_value_is_the_key(world: World) -> None:
    protect = idempotent(world.account)

    @world.app.post("/pay")
    async def pay(key: Key = Depends(protect)) -> dict[str, str]:  # noqa: B008  (FastAPI's way)
        return {"key": key.value, "scope": key.scope}

    async with calling(world.app) as http:
        first, again = [await http.post("/pay", headers=keyed("k1")) for _ in range(2)]
    assert first.json() == {"key": "k1", "scope": "a"}
    assert is_replay(first, again)


@pytest.mark.parametrize("change", ["no token", "unknown token", "revoked"])
async def test_a_replay_never_answers_someone_who_could_not_have_asked(world: World, change: str) -> None:
    add_pay(world)
    sent = keyed()
    async with calling(world.app) as http:
        first = await http.post("/pay", headers=sent)
        if change == "no token":
            del sent["Authorization"]
        elif change == "unknown token":
            sent["Authorization"] = "Bearer mallory"
        else:
            world.forbidden.add("alice")
        refused = await http.post("/pay", headers=sent)
    assert first.json() == {"run": 1}
    assert refused.status_code == (403 if change == "revoked" else 401)
    assert "run" not in refused.text
    assert "idempotent-replayed" not in refused.headers
    assert world.runs == ["pay"]


async def test_an_expired_tokens_401_is_not_replayed_to_the_fresh_token(world: World) -> None:
    add_pay(world)
    key = keyed()["Idempotency-Key"]
    async with calling(world.app) as http:
        expired = await http.post("/pay", headers={"Idempotency-Key": key, "Authorization": "Bearer old"})
        fresh = await http.post("/pay", headers=keyed(key))
    assert (expired.status_code, fresh.status_code) == (401, 201)
    assert "idempotent-replayed" not in fresh.headers


async def test_two_tenants_do_not_share_a_key(world: World) -> None:
    add_pay(world)
    async with calling(world.app) as http:
        alice = await http.post("/pay", headers={"Idempotency-Key": "same", **ALICE})
        bob = await http.post("/pay", headers={"Idempotency-Key": "same", **BOB})
    assert (alice.json(), bob.json()) == ({"run": 1}, {"run": 2})


async def test_scope_may_be_a_security_dependency_with_scopes(world: World) -> None:
    def account(scopes: SecurityScopes, who: Annotated[Any, Depends(bearer)]) -> str:
        if scopes.scopes != ["pay"]:
            raise HTTPException(403)
        return str(who.credentials)

    @world.post("/pay", scope=Security(account, scopes=["pay"]))
    async def pay() -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent = keyed()
        assert is_replay(await http.post("/pay", headers=sent), await http.post("/pay", headers=sent))


async def test_without_a_principal_nothing_runs(world: World) -> None:
    @world.post("/pay", scope=lambda: None)
    async def pay() -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        assert is_problem(await http.post("/pay", headers=keyed()), 500, "misconfigured")
    assert world.runs == []


async def test_without_the_middleware_nothing_runs_and_the_error_says_what_to_do(world: World) -> None:
    app = FastAPI()

    @world.post("/pay", app=app)
    async def pay() -> dict[str, int]:
        return world.ran()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        with pytest.raises(UsageError, match=r"POST /pay asks.*add_middleware\(IdempotencyMiddleware, safe=safe\)"):
            await http.post("/pay", headers=keyed())
    assert world.runs == []


def test_a_scope_that_is_no_dependency_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="scope='x'"):
        idempotent("x")
    with pytest.raises(UsageError, match="strength='strong'"):
        idempotent(lambda: "a", strength="strong")  # type: ignore[arg-type]


# Keys -------------------------------------------------------------------------------------------


async def test_a_missing_or_malformed_key_is_our_400_and_not_fastapis_422(world: World) -> None:
    add_pay(world)
    async with calling(world.app) as http:
        assert is_problem(await http.post("/pay", headers=ALICE), 400, "missing-key")
        assert is_problem(await http.post("/pay", headers=keyed("a, b")), 400, "malformed-key")
    assert world.runs == []


async def test_a_get_route_of_a_protected_router_is_left_alone(world: World) -> None:
    router = APIRouter(prefix="/v1", dependencies=[world.protect()])

    @router.get("/things")
    async def things() -> list[int]:
        return [1]

    @router.post("/things")
    async def make() -> dict[str, int]:
        return world.ran()

    world.app.include_router(router)
    async with calling(world.app) as http:
        assert (await http.get("/v1/things", headers=ALICE)).json() == [1]
        assert (await http.get("/v1/things")).status_code == 401
        assert (await http.post("/v1/things", headers=ALICE)).status_code == 400


async def test_optional_runs_without_a_key(world: World) -> None:
    made = World(policy=Policy(mode="optional"))
    protect = idempotent(made.account)

    @made.app.post("/pay")
    async def pay(key: Key | None = Depends(protect)) -> dict[str, Any]:  # noqa: B008
        return {"key": key and key.value, **made.ran()}

    async with calling(made.app) as http:
        assert [(await http.post("/pay", headers=ALICE)).json()["run"] for _ in range(2)] == [1, 2]
        sent = keyed("k")
        assert is_replay(await http.post("/pay", headers=sent), await http.post("/pay", headers=sent))


# What is stored ---------------------------------------------------------------------------------


class Shown(BaseModel):
    id: int


class Stored(Shown):
    password_hash: str


async def test_response_model_is_respected_by_the_replay(world: World) -> None:
    """A bug of a similar package: a replay contained a field that the response model leaves out."""

    @world.post("/users", response_model=Shown, status_code=201)
    async def users() -> Any:
        return Stored(id=7, password_hash="secret")

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/users", headers=sent) for _ in range(2)]
    assert first.json() == {"id": 7}
    assert is_replay(first, again)
    assert b"secret" not in (await world.record(sent["Idempotency-Key"])).answer.body


@pytest.mark.parametrize("order", ["inner", "outer"])
@pytest.mark.parametrize("form", ["decorator", "dependency"])
async def test_a_base_http_middleware_of_the_users_does_not_disable_it(order: str, form: str) -> None:
    """A bug of similar packages: BaseHTTPMiddleware sends every answer in several chunks."""
    world = World(form)
    if order == "inner":  # added first is innermost
        world.app.user_middleware.clear()

    @world.app.middleware("http")
    async def timing(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers["X-Seen"] = "yes"
        return response

    if order == "inner":
        world.app.add_middleware(asgi.IdempotencyMiddleware, safe=world.safe)
    add_pay(world)
    async with calling(world.app) as http:
        sent = keyed()
        first, again, third = [await http.post("/pay", headers=sent) for _ in range(3)]
    assert is_replay(first, again)
    assert is_replay(first, third)
    assert again.headers["x-seen"] == "yes"
    assert world.runs == ["pay"]


async def test_a_streaming_response_is_replayed_whole(world: World) -> None:
    @world.post("/stream")
    async def stream() -> StreamingResponse:
        world.ran()
        return StreamingResponse((f"{i}-{len(world.runs)}\n" for i in range(100)), media_type="text/plain")

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/stream", headers=sent) for _ in range(2)]
    assert first.text.count("\n") == 100
    assert is_replay(first, again)


async def test_background_tasks_run_once(world: World) -> None:
    @world.post("/pay")
    async def pay(tasks: BackgroundTasks) -> dict[str, int]:
        tasks.add_task(world.ran, "mail")
        return {"ok": 1}

    async with calling(world.app) as http:
        sent = keyed()
        assert is_replay(await http.post("/pay", headers=sent), await http.post("/pay", headers=sent))
    assert world.runs == ["mail"]


async def test_an_http_exception_is_an_answer(world: World) -> None:
    """A bug of a similar package: raised HTTPExceptions were never stored."""

    @world.post("/pay")
    async def pay() -> None:
        world.ran()
        raise HTTPException(402, "declined", {"X-Reason": "funds"})

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/pay", headers=sent) for _ in range(2)]
    assert first.json() == {"detail": "declined"}
    assert is_replay(first, again)
    assert again.headers["x-reason"] == "funds"
    assert world.runs == ["pay"]


async def test_an_exception_handlers_answer_is_the_answer(world: World) -> None:
    class Declined(Exception):
        pass

    @world.app.exception_handler(Declined)
    async def declined(request: Request, error: Declined) -> JSONResponse:
        return JSONResponse({"declined": True}, 402)

    @world.post("/pay")
    async def pay() -> None:
        world.ran()
        raise Declined

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/pay", headers=sent) for _ in range(2)]
    assert (first.status_code, first.json()) == (402, {"declined": True})
    assert is_replay(first, again)


async def test_a_handlers_own_http_exception_handler_does_not_see_replays(world: World) -> None:
    seen: list[int] = []

    @world.app.exception_handler(HTTPException)
    async def reported(request: Request, error: HTTPException) -> JSONResponse:
        seen.append(error.status_code)
        return JSONResponse({}, error.status_code)

    add_pay(world)
    async with calling(world.app) as http:
        sent = keyed()
        assert is_replay(await http.post("/pay", headers=sent), await http.post("/pay", headers=sent))
        await http.post("/pay")
    assert seen == [401], "only the application's own"


async def test_an_uncaught_exception_is_stored_and_raised_on(world: World) -> None:
    @world.post("/pay")
    async def pay() -> None:
        world.ran()
        raise RuntimeError("canary")

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/pay", headers=sent) for _ in range(2)]
    assert is_problem(first, 500, "failed")
    assert is_replay(first, again)
    assert "canary" not in first.text
    assert world.runs == ["pay"]


async def test_a_validation_error_after_the_claim_is_an_answer_too(world: World) -> None:
    @world.post("/pay")
    async def pay(order: Shown) -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/pay", headers=sent, json={"id": "x"}) for _ in range(2)]
        other = await http.post("/pay", headers=sent, json={"id": 1})
    assert first.status_code == 422
    assert is_replay(first, again)
    assert is_problem(other, 422, "mismatch")
    assert world.runs == []


async def test_a_plain_def_is_protected_as_well(world: World) -> None:
    @world.post("/pay")
    def pay() -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent = keyed()
        assert is_replay(await http.post("/pay", headers=sent), await http.post("/pay", headers=sent))


async def test_a_dependency_with_yield_is_closed_after_a_replay(world: World) -> None:
    """With the decorator it ends as usual. The dependency can only raise, so it sees an HTTP exception."""
    seen: list[str] = []

    async def session() -> Any:
        try:
            yield "session"
            seen.append("committed")
        except HTTPException as error:
            seen.append(f"rolled back: {error.status_code}")
            raise
        finally:
            seen.append("closed")

    @world.post("/pay", dependencies=[Depends(session)])
    async def pay() -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent = keyed()
        assert is_replay(await http.post("/pay", headers=sent), await http.post("/pay", headers=sent))
    replayed = "committed" if world.form == "decorator" else "rolled back: 200"
    assert seen == ["committed", "closed", replayed, "closed"]


# The target -------------------------------------------------------------------------------------


async def test_the_target_is_the_route_with_its_prefixes_and_not_the_address(world: World) -> None:
    inner, outer, sub = APIRouter(prefix="/orders"), APIRouter(prefix="/v1"), FastAPI()

    @inner.post("/{id}/pay", dependencies=[world.protect()])
    @sub.post("/{id}", dependencies=[world.protect()])
    @world.app.put("/direct/{id}", dependencies=[world.protect()])
    async def pay(id: str) -> dict[str, int]:
        return world.ran()

    outer.include_router(inner)
    world.app.include_router(outer)
    world.app.mount("/sub", sub)
    async with calling(world.app) as http:
        for method, path, key in (
            ("POST", "/v1/orders/7/pay", "k1"),
            ("PUT", "/direct/8", "k2"),
            ("POST", "/sub/9", "k3"),
        ):
            assert (await http.request(method, path, headers=keyed(key))).status_code == 200
    targets = [(await world.record(key)).target for key in ("k1", "k2", "k3")]
    assert targets == ["POST /v1/orders/{id}/pay", "PUT /direct/{id}", "POST /sub/{id}"]


# Operations -------------------------------------------------------------------------------------


async def test_strength_operation_only_reads_the_key(world: World) -> None:
    protect = idempotent(world.account, strength="operation")

    @world.app.post("/orders")
    async def orders(key: Key = Depends(protect)) -> Response:  # noqa: B008
        assert await world.record(key.value) is None, "nothing is claimed: the operation does"
        return respond(Answer(201, {"order": key.value}, [("Link", "</a>"), ("Link", "</b>")]))

    async with calling(world.app) as http:
        told = await http.post("/orders", headers=keyed("o1"))
        assert is_problem(await http.post("/orders", headers=ALICE), 400, "missing-key")
    assert (told.status_code, told.content) == (201, b'{"order":"o1"}')
    assert told.headers["content-type"] == "application/json"
    assert told.headers.get_list("link") == ["</a>", "</b>"]


async def test_an_ended_operation_tells_if_it_is_a_replay_and_bodiless_answers_have_no_body(world: World) -> None:
    fresh = respond(Ended(Answer(200, b"\xff\0"), False, None, None))  # type: ignore[arg-type]
    replayed = respond(Ended(Answer(200, b"x", {"Cache-Control": "max-age=9"}), True, None, None))  # type: ignore[arg-type]
    empty = respond(Answer(204))
    assert fresh.body == b"\xff\0"
    assert "idempotent-replayed" not in fresh.headers
    assert replayed.headers["idempotent-replayed"] == "true"
    assert replayed.headers.getlist("cache-control") == ["no-store"]
    assert "content-length" not in empty.headers


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_answer_route_takes_answers_as_they_are(world: World, colour: str) -> None:
    router = APIRouter(prefix="/v1", route_class=AnswerRoute)

    async def later(id: int) -> Answer:
        return Answer(201, b"\x89PNG", {"Content-Type": "image/png", "X-Id": str(id)})

    def now(id: int) -> Answer:
        return Answer(201, b"\x89PNG", {"Content-Type": "image/png", "X-Id": str(id)})

    router.add_api_route("/orders/{id}", later if colour == "async" else now, methods=["POST"])
    world.app.include_router(router)
    async with calling(world.app) as http:
        told = await http.post("/v1/orders/7")
    assert (told.status_code, told.content, told.headers["x-id"]) == (201, b"\x89PNG", "7")
    assert "Answer" not in str(world.app.openapi())


ERRORS: list[tuple[RetrySafeError, int, str]] = [
    (InProgress("k", 3_000_000), 409, "in-progress"),
    (FingerprintMismatch("k", 0), 422, "mismatch"),
    (OutcomeUnknown("k", 0, "canary"), 500, "outcome-unknown"),
    (NotFinished("create_order", "k", "charge", "canary"), 503, "not-finished"),
    (StoreUnavailable("canary"), 503, "store-unavailable"),
]


@pytest.mark.parametrize(("error", "status", "name"), ERRORS, ids=[name for _, _, name in ERRORS])
@pytest.mark.parametrize("form", ["decorator", "dependency"])
async def test_our_errors_become_their_problems(error: RetrySafeError, status: int, name: str, form: str) -> None:
    world = World(form)

    @world.post("/orders", strength="operation")
    async def orders() -> None:
        raise error

    async with calling(world.app) as http:
        told = await http.post("/orders", headers=keyed())
    assert is_problem(told, status, name)
    assert "canary" not in told.text
    if status in (409, 503):
        assert int(told.headers["retry-after"]) >= 1


async def test_under_a_claim_our_errors_are_the_handlers_failure(world: World) -> None:
    @world.post("/pay")
    async def pay() -> None:
        world.ran()
        raise InProgress("another key", 1_000_000)

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/pay", headers=sent) for _ in range(2)]
    assert is_problem(first, 500, "failed")
    assert is_replay(first, again)


async def test_the_handlers_work_without_the_middleware() -> None:
    app = FastAPI()
    add_problem_handlers(app)

    @app.post("/x")
    async def x() -> None:
        raise InProgress("k", 1)

    async with calling(app) as http:
        assert is_problem(await http.post("/x"), 409, "in-progress")


# Together ---------------------------------------------------------------------------------------


async def test_fifty_at_once_run_once(world: World) -> None:
    go = asyncio.Event()

    @world.post("/pay", Policy(busy="wait"))
    async def pay() -> dict[str, int]:
        await go.wait()
        return world.ran()

    async with calling(world.app) as http:
        sent = keyed()
        calls = [asyncio.create_task(http.post("/pay", headers=sent)) for _ in range(50)]
        while not await world.record(sent["Idempotency-Key"]):
            await asyncio.sleep(0)
        go.set()
        told = await asyncio.gather(*calls)
    assert {answer.content for answer in told} == {b'{"run":1}'}
    assert world.runs == ["pay"]


async def test_the_header_shown_in_the_document_is_not_validated(world: World) -> None:
    @world.post("/pay")
    async def pay(x: Annotated[str, Header()] = "") -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        assert (await http.post("/pay", headers=keyed("x" * 255))).status_code == 200
        assert is_problem(await http.post("/pay", headers=keyed("x" * 256)), 400, "malformed-key")
