"""The Litestar guard, after the application's own guards."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar import Litestar, Response, Router, get, post
from litestar.config.cors import CORSConfig
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody
from litestar.response import Stream

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.errors import InProgress, UsageError
from retrysafe.web.litestar import idempotent, install, provide_key, respond
from tests.web.frameworks.calling import calling, is_replay, keyed
from tests.web.frameworks.paying import Paying

RUNS: list[str] = []
REVOKED: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    RUNS.clear()
    REVOKED.clear()


def signed_in(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    name = connection.headers.get("authorization", "").removeprefix("Bearer ")
    if name not in ("alice", "bob"):
        raise NotAuthorizedException
    if name in REVOKED:
        raise PermissionDeniedException
    connection.state.account = name


async def who(request: Any) -> str:
    return str(request.state.account)


@post("/pay/{id:int}", guards=[idempotent(who)], dependencies={"key": provide_key})
async def pay(id: FromPath[int], key: NamedDependency[Key], data: JSONBody[dict[str, int]]) -> dict[str, Any]:
    RUNS.append("pay")
    return {"run": len(RUNS), "key": key.value, "sent": data}


@post("/stream", guards=[idempotent(who)])
async def stream() -> Stream:
    async def pieces() -> AsyncIterator[bytes]:
        for i in range(100):
            yield f"{i}-{len(RUNS)}\n".encode()

    RUNS.append("stream")
    return Stream(pieces(), media_type="text/plain")


@post("/declined", guards=[idempotent(who)])
async def declined() -> None:
    RUNS.append("declined")
    raise HTTPException("declined", status_code=402)


@post("/fails", guards=[idempotent(who)])
async def fails() -> None:
    RUNS.append("fails")
    raise RuntimeError("canary")


@post("/orders", guards=[idempotent(who, strength="operation")], dependencies={"key": provide_key})
async def orders(key: NamedDependency[Key]) -> Response[bytes]:
    if key.value == "busy":
        raise InProgress(key.value, 1)
    return respond(Answer(201, {"order": key.value}, [("Link", "</a>"), ("Link", "</b>")]))


@get("/pay", guards=[idempotent(who)])
async def shown() -> dict[str, int]:
    return {"runs": len(RUNS)}


safe = RetrySafe("memory://")
v1 = Router("/v1", route_handlers=[pay, stream, declined, fails, orders, shown], guards=[signed_in])
cors = CORSConfig(allow_origins=["https://a.example"], expose_headers=["Idempotent-Replayed", "Retry-After"])
app = Litestar([v1], cors_config=cors)
install(app, safe=safe)


class TestPaying(Paying):
    app, safe, revoked, target = app, safe, REVOKED, "POST /v1/pay/{id}"


@pytest.mark.parametrize(("path", "status"), [("/v1/stream", 201), ("/v1/declined", 402), ("/v1/fails", 500)])
async def test_streams_exceptions_and_failures_are_answers(path: str, status: int) -> None:
    sent = keyed()
    async with calling(app) as http:
        first, again = [await http.post(path, headers=sent) for _ in range(2)]
    assert first.status_code == status
    assert is_replay(first, again)
    assert "canary" not in first.text
    assert len(RUNS) == 1


async def test_cors_is_decided_for_each_request() -> None:
    sent = keyed()
    async with calling(app) as http:
        first = await http.post("/v1/pay/7", headers=sent, json={})
        again = await http.post("/v1/pay/7", headers={**sent, "Origin": "https://a.example"}, json={})
    assert "access-control-allow-origin" not in first.headers
    assert again.headers["access-control-allow-origin"] == "https://a.example"
    assert is_replay(first, again)


async def test_without_install_nothing_runs_and_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Exception] = []

    @post("/pay", guards=[idempotent(lambda request: "a")])
    async def bare() -> None:
        RUNS.append("bare")

    async with calling(Litestar([bare], after_exception=[lambda error, scope: seen.append(error)])) as http:
        with caplog.at_level(logging.CRITICAL):
            assert (await http.post("/pay", headers=keyed())).status_code == 500
    assert isinstance(seen[0], UsageError)
    assert "install(app, safe=safe)" in str(seen[0])
    assert RUNS == []


def test_a_scope_that_is_no_callable_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="scope='x'"):
        idempotent("x")  # type: ignore[arg-type]


async def test_the_openapi_document_says_so() -> None:
    async with calling(app) as http:
        document = (await http.get("/schema/openapi.json")).json()
    operation = document["paths"]["/v1/pay/{id}"]["post"]
    assert [one["name"] for one in operation["parameters"]] == ["id", "Idempotency-Key"]
    assert operation["parameters"][1]["required"] is True
    for status in ("400", "409", "422", "503"):
        assert "application/problem+json" in operation["responses"][status]["content"]
    assert "Idempotent-Replayed" in operation["responses"]["201"]["headers"]
    assert operation["x-idempotency"]["retention_seconds"] == Policy().retention
    assert document["paths"]["/v1/orders"]["post"]["x-idempotency"]["strength"] == "operation"
    assert "x-idempotency" not in document["paths"]["/v1/pay"]["get"]
