"""What only the FastAPI decorator does. What it has in common with the dependency is tested in test_fastapi.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.errors import UsageError
from retrysafe.web.fastapi import idempotent, install
from retrysafe.web.fastapi_routes import walk_routes
from retrysafe.web.keyless import KeylessExchange
from retrysafe.web.routes import Route
from retrysafe.web.settings import Settings
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.view import view_from_scope
from tests.web.frameworks.calling import ALICE, calling, is_problem, is_replay, keyed
from tests.web.frameworks.test_fastapi import World


class Order(BaseModel):
    amount: int


@pytest.fixture
def world() -> World:
    return World()


# Arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_argument_annotated_with_key_is_the_key(world: World, colour: str) -> None:
    protect = idempotent(world.account)
    if colour == "async":

        @world.app.post("/pay")
        @protect
        async def pay(order: Order, key: Key) -> dict[str, Any]:
            return {"key": key.value, "scope": key.scope, "amount": order.amount}

    else:

        @world.app.post("/pay")
        @protect
        def pay_now(order: Order, key: Key) -> dict[str, Any]:
            return {"key": key.value, "scope": key.scope, "amount": order.amount}

    async with calling(world.app) as http:
        first, again = [await http.post("/pay", headers=keyed("k1"), json={"amount": 3}) for _ in range(2)]
    assert first.json() == {"key": "k1", "scope": "a", "amount": 3}
    assert is_replay(first, again)
    assert "key" not in str(world.app.openapi()["paths"]["/pay"]["post"]["requestBody"])


async def test_without_a_key_the_argument_is_none(world: World) -> None:
    @world.app.post("/pay")
    @idempotent(world.account, Policy(mode="optional"))
    async def pay(key: Key | None) -> dict[str, Any]:
        return {"key": key and key.value}

    async with calling(world.app) as http:
        assert (await http.post("/pay", headers=ALICE)).json() == {"key": None}
        assert (await http.post("/pay", headers=keyed("k"))).json() == {"key": "k"}


@pytest.mark.parametrize("written", ["annotated", "default"])
async def test_a_principal_that_the_endpoint_asks_for_is_resolved_once(world: World, written: str) -> None:
    asked: list[str] = []

    def account(authorization: Annotated[str, Header()]) -> str:
        asked.append(authorization)
        return authorization

    mine = Depends(account)
    if written == "annotated":

        async def pay(request: Request, who: Annotated[str, mine]) -> str:
            return f"{who} {request.url.path}"

    else:

        async def pay(request: Request, who: str = mine) -> str:  # type: ignore[misc]
            return f"{who} {request.url.path}"

    pay.__annotations__["who"] = Annotated[str, mine] if written == "annotated" else str
    world.app.post("/pay")(idempotent(account)(pay))
    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/pay", headers=sent) for _ in range(2)]
    assert first.json() == "Bearer alice /pay"
    assert is_replay(first, again)
    assert len(asked) == 2, "once for each request"
    (route,) = [route for _, route in walk_routes(world.app.routes) if route.path == "/pay"]
    assert len(route.dependant.dependencies) == 1


async def test_dependencies_are_overridden_as_always(world: World) -> None:
    @world.app.post("/pay")
    @idempotent(world.account)
    async def pay(key: Key) -> str:
        return key.scope

    world.app.dependency_overrides[world.account] = lambda: "tester"
    async with calling(world.app) as http:
        assert (await http.post("/pay", headers={"Idempotency-Key": "k"})).json() == "tester"


async def test_an_operations_answer_is_returned_as_it_is(world: World) -> None:
    @world.app.post("/orders")
    @idempotent(world.account, strength="operation")
    async def orders(key: Key) -> Answer:
        assert await world.record(key.value) is None, "nothing is claimed: the operation does"
        return Answer(201, b"\x89PNG", {"Content-Type": "image/png"})

    async with calling(world.app) as http:
        told = await http.post("/orders", headers=keyed())
    assert (told.status_code, told.content, told.headers["content-type"]) == (201, b"\x89PNG", "image/png")
    assert "Answer" not in str(world.app.openapi())


# Misuse -------------------------------------------------------------------------------------------------


async def test_a_call_without_a_request_says_what_to_do(world: World) -> None:
    @idempotent(world.account)
    async def pay() -> str:
        return "paid"

    with pytest.raises(UsageError, match=r"pay was called without a request.*__wrapped__"):
        await pay()
    assert await pay.__wrapped__() == "paid"


def test_an_endpoint_that_yields_is_refused(world: World) -> None:
    async def stream() -> AsyncIterator[str]:
        yield "a"

    with pytest.raises(UsageError, match=r"Depends\(idempotent\(\.\.\.\)\)"):
        idempotent(world.account)(stream)
    with pytest.raises(UsageError, match="protects a function, but was given 7"):
        idempotent(world.account)(7)  # type: ignore[arg-type]


# What comes before the claim ------------------------------------------------------------------------------


async def test_what_a_dependency_refuses_claims_nothing(world: World) -> None:
    allowed: list[bool] = []

    def may_pay() -> None:
        if not allowed:
            raise HTTPException(403)

    @world.app.post("/pay", dependencies=[Depends(may_pay)])
    @idempotent(world.account)
    async def pay() -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        sent = keyed("k")
        assert (await http.post("/pay", headers=sent)).status_code == 403
        assert await world.record("k") is None
        allowed.append(True)
        assert (await http.post("/pay", headers=sent)).json() == {"run": 1}


@pytest.mark.parametrize("where", ["app", "router", "mount"])
@pytest.mark.parametrize("invalid", ["store", "withdraw"])
async def test_what_an_invalid_request_leaves_behind_is_the_policys_to_say(where: str, invalid: Any) -> None:
    world = World(policy=Policy(invalid=invalid))
    router = FastAPI() if where == "mount" else APIRouter() if where == "router" else world.app
    at = "/orders/{id}" if where == "app" else "/{id}"

    def account(id: int, authorization: Annotated[str, Header()]) -> str:
        return f"{authorization} {id}"

    @router.post(at)
    @idempotent(account)
    async def pay(id: int, order: Order) -> dict[str, int]:
        return world.ran()

    if where == "mount":
        world.app.mount("/orders", router)
    elif isinstance(router, APIRouter):
        world.app.include_router(router, prefix="/orders")
    sent = keyed("k")
    async with calling(world.app) as http:
        wrong, again = [await http.post("/orders/7", headers=sent, json={"amount": "much"}) for _ in range(2)]
        right = await http.post("/orders/7", headers=sent, json={"amount": 3})
        nobody = await http.post("/orders/7", headers={"Idempotency-Key": "k"}, json={"amount": "much"})
        keyless = await http.post("/orders/7", headers=ALICE, json={"amount": "much"})
    assert wrong.status_code == 422
    assert [one["loc"] for one in wrong.json()["detail"]] == [["body", "amount"]]
    if invalid == "store":
        assert is_replay(wrong, again)
        assert is_problem(right, 422, "mismatch")
        assert world.runs == []
    else:
        assert "idempotent-replayed" not in again.headers
        assert right.json() == {"run": 1}
    assert sorted(one["loc"][0] for one in nobody.json()["detail"]) == ["body", "header"]
    assert is_problem(keyless, 400, "missing-key")


async def test_an_endpoint_that_calls_its_request_invalid_was_entered(world: World) -> None:
    from fastapi.exceptions import RequestValidationError

    @world.app.post("/own")
    @idempotent(world.account, Policy(invalid="withdraw"))
    async def own() -> None:
        world.ran()
        raise RequestValidationError([{"loc": ("body",), "msg": "charged", "type": "own"}])

    async with calling(world.app) as http:
        sent = keyed()
        first, again = [await http.post("/own", headers=sent) for _ in range(2)]
    assert first.status_code == 422
    assert is_replay(first, again)
    assert world.runs == ["pay"]


# Transactions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_transaction_commits_with_its_answer(sqlite_url: str, colour: str) -> None:
    safe = RetrySafe(sqlite_url)
    safe.migrate()
    app, handles = FastAPI(), []
    install(app, safe=safe)
    protect = idempotent(lambda: "a", strength="transaction", tx=sqlite_url)

    async def later(order: Order, tx: Any, key: Key) -> dict[str, Any]:
        handles.append(tx)
        return {"key": key.value}

    def now(order: Order, tx: Any, key: Key) -> dict[str, Any]:
        handles.append(tx)
        return {"key": key.value}

    app.post("/pay", status_code=201)(protect(later if colour == "async" else now))
    async with calling(app) as http:
        sent = keyed("k")
        first, again = [await http.post("/pay", headers=sent, json={"amount": 1}) for _ in range(2)]
        assert is_problem(await http.post("/pay", headers=ALICE, json={"amount": 1}), 400, "missing-key")
    assert (first.status_code, first.json()) == (201, {"key": "k"})
    assert is_replay(first, again)
    assert len(handles) == 1
    assert handles[0] is not None
    await safe.aclose()


# Without a key --------------------------------------------------------------------------------------------


async def test_without_a_key_nothing_is_captured(world: World) -> None:
    seen: list[Any] = []

    @world.app.post("/pay")
    @idempotent(world.account, Policy(mode="optional"))
    async def pay(request: Request) -> str:
        seen.append(request.scope["retrysafe.exchange"])
        return "paid"

    async with calling(world.app) as http:
        assert (await http.post("/pay", headers=ALICE)).json() == "paid"
        await http.post("/pay", headers=keyed())
    assert [type(one) for one in seen] == [KeylessExchange, AsyncExchange]


async def test_generate_goes_on_to_mint_keys() -> None:
    world = World()

    @world.app.post("/pay")
    @idempotent(world.account, Policy(mode="generate"))
    async def pay(key: Key) -> str:
        return key.value

    async with calling(world.app) as http:
        told = await http.post("/pay", headers=ALICE)
    assert told.headers["idempotency-key"] == f'"{told.json()}"'


async def test_a_listed_route_that_never_claims_is_still_refused() -> None:
    world = World(routes={"POST /pay": Policy()})

    @world.app.post("/pay")
    async def pay() -> dict[str, int]:
        return world.ran()

    async with calling(world.app) as http:
        assert is_problem(await http.post("/pay", headers=ALICE), 500, "unprotected")


@pytest.mark.parametrize("form", ["decorator", "dependency"])
async def test_who_sends_no_key_is_counted(form: str) -> None:
    world = World(form)
    census = install(app := FastAPI(), safe=world.safe)
    world.post("/pay", Policy(mode="optional"), app=app)(lambda: "paid")
    async with calling(app) as http:
        for _ in range(2):
            await http.post("/pay", headers=ALICE)
    (counted,) = census.snapshot()["rows"]
    assert (counted["route"], counted["counts"]) == ("POST /pay", {"missing": 2})


def test_an_exchange_without_a_key_has_what_every_exchange_has(world: World) -> None:
    settings, route = Settings(world.safe, None, {}), Route(Policy())
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    whole = AsyncExchange(settings, view_from_scope(scope), route, ())
    keyless = KeylessExchange(settings, scope, route)
    for name, value in vars(whole).items():
        assert name in ("view", "_begun") or getattr(keyless, name) == value, name
    assert keyless.view.method == "POST"


# The document ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["decorator", "dependency"])
async def test_no_header_is_resolved_and_the_document_has_it(form: str) -> None:
    world, mounted = World(form), FastAPI()
    world.post("/pay")(lambda: "paid")
    world.post("/pay", app=mounted)(lambda: "paid")
    world.app.mount("/sub", mounted)

    async with calling(world.app) as http:
        assert (await http.post("/pay", headers=keyed())).json() == "paid"
        served = [(await http.get(f"{at}/openapi.json")).json() for at in ("", "/sub")]

    def headers(dependant: Any) -> list[str]:
        own = [one.alias.lower() for one in dependant.header_params]
        return own + [name for one in dependant.dependencies for name in headers(one)]

    assert not [
        name for _, route in walk_routes(world.app.routes) for name in headers(route.dependant) if "idem" in name
    ]
    for document in served:
        operation = document["paths"]["/pay"]["post"]
        assert [one["name"] for one in operation["parameters"]] == ["Idempotency-Key"]
        assert operation["x-idempotency"]["strength"] == "guard"
        assert "application/problem+json" in operation["responses"]["409"]["content"]


def test_it_is_imported_where_people_look_first() -> None:
    import retrysafe.fastapi

    assert retrysafe.fastapi.idempotent is idempotent
