"""What the OpenAPI document of a FastAPI application says, however it is made."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from retrysafe import Policy, RetrySafe
from retrysafe.core.keys import parse_key
from retrysafe.errors import MalformedKey
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.fastapi import complete_schema, document, idempotent, install
from retrysafe.web.key_header import KeyRule
from retrysafe.web.openapi import KEY_PATTERN
from retrysafe.web.problems import Codes
from tests.web.frameworks.calling import calling


class Order(BaseModel):
    amount: int


class Problem(BaseModel):
    why: str


def account() -> str:
    return "a"


def application(policy: Policy | None = None, *, strength: Any = "guard", **options: Any) -> FastAPI:
    app = FastAPI()
    install(app, safe=RetrySafe("memory://"), **options)
    add_routes(app, policy, strength)
    return app


def add_routes(app: FastAPI, policy: Policy | None = None, strength: Any = "guard") -> None:
    router = APIRouter(prefix="/v1", dependencies=[Depends(idempotent(account, policy, strength=strength))])

    @router.post("/orders", status_code=201, description="Buy something.")
    async def buy(order: Order) -> Order:
        return order

    @router.get("/orders")
    async def orders() -> list[Order]:
        return []

    app.include_router(router)


def bought(app: FastAPI) -> dict[str, Any]:
    found: dict[str, Any] = app.openapi()["paths"]["/v1/orders"]["post"]
    return found


def key_parameter(operation: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in operation["parameters"] if one["name"] == "Idempotency-Key"]
    return found  # type: ignore[no-any-return]


def test_everything_a_client_must_know_is_there() -> None:
    operation = bought(application())
    header = key_parameter(operation)
    assert header["in"] == "header"
    assert header["required"] is True
    assert re.fullmatch(header["schema"]["pattern"], header["example"])
    for status in ("400", "409", "410", "413", "422", "500", "503"):
        schema = operation["responses"][status]["content"]["application/problem+json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/Problem"}
    assert operation["responses"]["422"]["content"]["application/json"], "FastAPI's own stays"
    assert "Retry-After" in operation["responses"]["409"]["headers"]
    assert "Retry-After" in operation["responses"]["503"]["headers"]
    assert "Idempotent-Replayed" in operation["responses"]["201"]["headers"]
    assert operation["x-idempotency"] == {
        "header": "Idempotency-Key",
        "mode": "required",
        "strength": "guard",
        "busy": "conflict",
        "failures": "store",
        "retention_seconds": 86400,
        "replay_header": "Idempotent-Replayed",
    }
    assert operation["description"].startswith("Buy something.\n\n**Idempotency**: Send a new `Idempotency-Key`")
    assert "for 24 hours" in operation["description"]


def test_the_problem_is_a_component_that_matches_what_we_send() -> None:
    problem = application().openapi()["components"]["schemas"]["Problem"]
    assert set(problem["required"]) == {"type", "title", "status", "detail", "retry_same_key", "safe_new_key"}


def test_a_get_route_of_the_router_says_nothing() -> None:
    operation = application().openapi()["paths"]["/v1/orders"]["get"]
    assert operation.get("parameters", []) == []
    assert "x-idempotency" not in operation
    assert "409" not in operation["responses"]


def test_the_routes_own_policy_shows() -> None:
    operation = bought(application(Policy(mode="optional", retention=float("inf"), failures=lambda *_: True)))
    assert key_parameter(operation)["required"] is False
    assert operation["x-idempotency"]["retention_seconds"] is None
    assert operation["x-idempotency"]["failures"] == "custom"
    assert "for ever" in operation["description"]


def test_an_operations_route_says_so() -> None:
    assert bought(application(strength="operation"))["x-idempotency"]["strength"] == "operation"


def test_the_middlewares_options_show() -> None:
    options: dict[str, Any] = {
        "policy": Policy(retention=3 * 86400),
        "codes": Codes(mismatch=400),
        "key_rule": KeyRule(uuid=True),
    }
    operation = bought(application(**options))
    assert "for 3 days" in operation["description"]
    assert "another request" in operation["responses"]["400"]["description"]
    assert "application/problem+json" not in operation["responses"]["422"]["content"]
    assert key_parameter(operation)["schema"] == {"type": "string", "format": "uuid"}


def test_a_listed_routes_policy_shows() -> None:
    operation = bought(application(routes={"POST /v1/orders": Policy(busy="wait")}))
    assert operation["x-idempotency"]["busy"] == "wait"


def test_generate_and_observe_are_told_apart() -> None:
    minted = bought(application(Policy(mode="generate")))
    watched = bought(application(Policy(mode="observe")))
    assert "Idempotency-Key" in minted["responses"]["201"]["headers"]
    assert "only counted" in watched["description"]
    assert "409" not in watched["responses"]


def test_another_problem_of_the_applications_keeps_its_name() -> None:
    app = application()

    @app.get("/why")
    async def why() -> Problem:
        return Problem(why="x")

    schemas = app.openapi()["components"]["schemas"]
    assert set(schemas["Problem"]["properties"]) == {"why"}
    schema = bought(app)["responses"]["409"]["content"]["application/problem+json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/IdempotencyProblem"}


# However the document is made -------------------------------------------------------------------


def customise(app: FastAPI) -> None:
    """As FastAPI's documentation shows it."""

    def custom() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = get_openapi(title="Mine", version="9", routes=app.routes)
        return app.openapi_schema

    app.openapi = custom  # type: ignore[method-assign]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_it_survives_a_customised_openapi(when: str) -> None:
    app = FastAPI()
    if when == "before":
        customise(app)
    install(app, safe=RetrySafe("memory://"))
    add_routes(app)
    if when == "after":
        customise(app)
    async with calling(app) as http:
        served = (await http.get("/openapi.json")).json()
    assert served["info"]["title"] == "Mine"
    assert "409" in served["paths"]["/v1/orders"]["post"]["responses"]
    assert app.openapi() == served


def test_even_without_anything_the_header_is_shown() -> None:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, safe=RetrySafe("memory://"))
    add_routes(app, Policy(retention=60))
    assert key_parameter(bought(app))["schema"]["x-idempotency"]["retention_seconds"] == 60
    document(app)
    app.openapi_schema = None
    assert "409" in bought(app)["responses"]


def test_doing_it_again_changes_nothing() -> None:
    app = application()
    once = str(app.openapi())
    document(app)
    complete_schema(app.openapi(), app)
    assert str(app.openapi()) == once


def test_routes_added_later_are_in_it() -> None:
    app = application()
    app.openapi()

    @app.post("/late", dependencies=[Depends(idempotent(account))])
    async def late() -> None: ...

    app.openapi_schema = None
    assert "409" in app.openapi()["paths"]["/late"]["post"]["responses"]


@pytest.mark.parametrize(
    "text",
    ["k", "a b", "a,b", '"k"', '"a,b"', '"a b"', '"', '""', '"a', 'a"b', '"a\\"b"', '"a\\b"', "é", "", "x" * 255,
     "x" * 256, '"' + "x" * 255 + '"', '"' + "x" * 256 + '"', "~!#+-.^_|", "\x7f"],
)  # fmt: skip
def test_the_documented_pattern_is_the_parsers(text: str) -> None:
    try:
        parse_key(text)
        taken = True
    except MalformedKey:
        taken = False
    assert bool(re.search(KEY_PATTERN, text)) is taken
