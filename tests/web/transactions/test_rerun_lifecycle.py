"""A run that was rolled back ends like any other: dependencies are closed, background tasks do not run, and what the
application set on the request is gone when the next run begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from flask import Flask
from flask import request as flask_request
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from litestar.background_tasks import BackgroundTask as LitestarTask
from litestar.config.cors import CORSConfig
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException as LitestarError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from retrysafe import Policy, RetrySafe
from retrysafe.transactions import find_source
from retrysafe.web import fastapi, flask, litestar, starlette
from tests.transactions.conftest import sqlite_world
from tests.transactions.rigs import World
from tests.web.frameworks.calling import calling, keyed
from tests.web.transactions.crashing import Conflict
from tests.web.transactions.test_reruns import Rivalled

pytestmark = pytest.mark.store("sqlite")
SQL = "INSERT INTO effects (value) VALUES ('a')"
WHERE = ["handler", "commit"]


class Log(list[str]):
    """What happened, and the failure of the first run, in its handler or at its commit."""

    def __init__(self, world: World, where: str, asynchronous: bool = True) -> None:
        super().__init__()
        self.tx = Rivalled(world.path, asynchronous)
        self._once = [Conflict()]
        if where == "commit":
            self.tx.first = [self.trouble]
        self._where = where

    def ran(self) -> None:
        self.append("ran")
        if self._where == "handler":
            self.trouble()

    def trouble(self) -> None:
        if self._once:
            raise self._once.pop()


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[World]:
    made = sqlite_world(request, tmp_path)
    yield made
    made.safe.close()


async def posted(app: Any, safe: RetrySafe) -> httpx.Response:
    """As a server does: each request gets a copy of the application's state."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {"pool": 7}}, receive, send)

    async with calling(served) as http:
        told = await http.post("/pay", headers=keyed("k", Origin="http://shop"))
    await safe.async_store.aclose()
    return told


def alice(request: Any = None) -> str:
    return "alice"


@pytest.mark.parametrize("where", WHERE)
async def test_fastapi(world: World, where: str) -> None:
    log, app = Log(world, where), FastAPI()
    fastapi.install(app, safe=world.safe)
    protect = fastapi.idempotent(alice0, strength="transaction", tx=log.tx)

    async def resource(request: Request) -> AsyncIterator[str]:
        assert (request.state.pool, hasattr(request.state, "noted")) == (7, False), "the first run's note is gone"
        request.state.noted = True
        log.append("open")
        try:
            yield "resource"
        finally:
            log.append("close")

    @app.post("/pay", status_code=201)
    async def pay(
        tasks: BackgroundTasks,
        request: Request,
        used: str = Depends(resource),
        tx: Any = Depends(protect),  # noqa: B008
    ) -> str:
        await tx.execute(SQL)
        tasks.add_task(log.append, "afterwards")
        log.ran()
        return used

    told = await posted(app, world.safe)
    assert (told.status_code, told.json(), world.effects()) == (201, "resource", ["a"])
    assert log.count("afterwards") == 1
    assert [step for step in log if step != "afterwards"] == ["open", "ran", "close"] * 2


def alice0() -> str:
    return "alice"


@pytest.mark.parametrize("where", WHERE)
async def test_starlette(world: World, where: str) -> None:
    log = Log(world, where)

    @starlette.idempotent(alice, strength="transaction", tx=log.tx)
    async def pay(request: StarletteRequest, tx: Any) -> JSONResponse:
        assert not hasattr(request.state, "noted")
        request.state.noted = True
        request.scope["headers"].append((b"x-noted", b"1"))
        await tx.execute(SQL)
        log.ran()
        noted = len(request.scope["headers"])
        return JSONResponse(noted, 201, background=BackgroundTask(log.append, "afterwards"))

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(starlette.IdempotencyMiddleware, safe=world.safe)
    told = await posted(app, world.safe)
    assert (told.status_code, world.effects(), log) == (201, ["a"], ["ran", "ran", "afterwards"])
    sent = len(told.request.headers) + 1
    assert told.json() == sent, "the header it added is there once"


@pytest.mark.parametrize("where", WHERE)
async def test_litestar(world: World, where: str) -> None:
    log = Log(world, where)

    async def resource() -> AsyncIterator[str]:
        log.append("open")
        try:
            yield "resource"
        finally:
            log.append("close")

    @post(
        "/pay",
        guards=[litestar.idempotent(alice, strength="transaction", tx=log.tx)],
        dependencies={"tx": litestar.provide_tx, "used": Provide(resource)},
    )
    async def pay(
        request: LitestarRequest[Any, Any, Any], used: NamedDependency[str], tx: NamedDependency[Any]
    ) -> LitestarResponse[str]:
        assert "noted" not in request.state
        request.state.noted = True
        await tx.execute(SQL)
        log.ran()
        return LitestarResponse(used, status_code=201, background=LitestarTask(log.append, "afterwards"))

    app = Litestar([pay])
    litestar.install(app, safe=world.safe)
    told = await posted(app, world.safe)
    assert (told.status_code, told.text, world.effects()) == (201, "resource", ["a"])
    assert log.count("afterwards") == 1
    assert [step for step in log if step != "afterwards"] == ["open", "ran", "close"] * 2


async def test_litestar_does_not_remember_that_the_first_answer_had_begun(world: World) -> None:
    """Litestar caches data about a request in a place that CORS, which is outside of us, has created."""
    log = Log(world, "commit")
    protect = litestar.idempotent(alice, strength="transaction", tx=log.tx)

    @post("/pay", guards=[protect], dependencies={"tx": litestar.provide_tx})
    async def pay(tx: NamedDependency[Any]) -> None:
        await tx.execute(SQL)
        log.ran()
        if len(log) > 1:
            raise LitestarError(status_code=402)

    app = Litestar([pay], cors_config=CORSConfig(allow_origins=["*"]))
    litestar.install(app, safe=world.safe)
    told = await posted(app, world.safe)
    assert (told.status_code, world.effects(), log) == (402, [], ["ran", "ran"])


@pytest.mark.parametrize("where", WHERE)
def test_flask(world: World, where: str) -> None:
    log, app = Log(world, where, asynchronous=False), Flask("shop")
    idempotency = flask.Idempotency(app, safe=world.safe)
    app.teardown_request(lambda error: log.append("close"))

    @app.post("/pay")
    @idempotency.protect(scope=alice, strength="transaction", tx=log.tx)
    def pay(tx: Any) -> Any:
        assert "noted" not in flask_request.environ
        flask_request.environ["noted"] = True
        tx.execute(SQL)
        log.ran()
        return {"paid": True}, 201

    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as http:
        told = http.post("/pay", headers=keyed("k"))
    assert (told.status_code, world.effects(), log) == (201, ["a"], ["ran", "close"] * 2)


async def test_a_conflict_after_the_handler_is_one_too(world: World) -> None:
    """Rendering the answer may still read from the database, and be rolled back there."""
    log, app = Log(world, "rendering"), FastAPI()
    fastapi.install(app, safe=world.safe)
    protect = fastapi.idempotent(alice0, strength="transaction", tx=log.tx)

    class Lazy(JSONResponse):
        def render(self, content: Any) -> bytes:
            log.trouble()
            return super().render(content)

    @app.post("/pay", status_code=201, response_class=Lazy)
    async def pay(tx: Any = Depends(protect)) -> bool:  # noqa: B008
        await tx.execute(SQL)
        log.ran()
        return True

    told = await posted(app, world.safe)
    assert (told.status_code, world.effects(), log) == (201, ["a"], ["ran", "ran"])


async def test_a_middleware_that_meets_a_conflict(world: World) -> None:
    """The failure is neither in the handler nor at the commit, and no adapter sees it: the middleware does."""
    log = Log(world, "around")

    @starlette.idempotent(alice, strength="transaction", tx=log.tx)
    async def pay(request: StarletteRequest, tx: Any) -> JSONResponse:
        await tx.execute(SQL)
        log.ran()
        return JSONResponse({}, 201)

    class Auditing:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                log.trouble()
                await send(message)

            await self.app(scope, receive, sent)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(Auditing)
    app.add_middleware(starlette.IdempotencyMiddleware, safe=world.safe)
    told = await posted(app, world.safe)
    assert (told.status_code, world.effects(), log) == (201, ["a"], ["ran", "ran"])


async def test_what_has_begun_to_go_out_is_not_run_again(world: World) -> None:
    """A stream whose status is not final passes through while its transaction is open."""
    log = Log(world, "stream")

    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        log.trouble()

    @starlette.idempotent(alice, Policy(failures="release"), strength="transaction", tx=log.tx)
    async def pay(request: StarletteRequest, tx: Any) -> StreamingResponse:
        await tx.execute(SQL)
        log.ran()
        return StreamingResponse(events(), 503, media_type="text/event-stream")

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(starlette.IdempotencyMiddleware, safe=world.safe)
    told = await posted(app, world.safe)
    assert (told.status_code, told.content, world.effects(), log) == (503, b"data: 1\n\n", [], ["ran"])


def test_a_source_of_our_own_is_a_source(world: World) -> None:
    """The precondition of these tests: the wrapper commits, and rolls back if its hook raises."""
    tx = Rivalled(world.path, asynchronous=False)
    tx.first = [Log(world, "x").trouble]
    with pytest.raises(Conflict), find_source(tx, "sync").begin() as opened:
        opened.handle.execute(SQL)
    assert world.effects() == []
    with find_source(tx, "sync").begin() as opened:
        opened.handle.execute(SQL)
    assert world.effects() == ["a"]
