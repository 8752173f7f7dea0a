"""The FastAPI application of the web part, bare or protected: `python -m benchmarks.apps.fastapi_app KIND PORT URL`.

It does what a handler does at least: knows whose request it is, reads its JSON body, waits once for something small,
answers JSON. Every kind is this application; ours is wired up as the README's quick start does it. Others are wired up
as their own documentation says, those that protect functions around the function the handler calls.
"""

# Other people's packages live in an environment that mypy does not see (benchmarks/environment.py).
# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from benchmarks.apps import TUNED

WAIT = 0.0005
RECEIPT = {"id": "pay_4127", "status": "succeeded", "amount": 10000, "note": "x" * 140}


async def current_account(authorization: Annotated[str, Header()] = "") -> str:
    if not authorization.startswith("Bearer "):
        raise HTTPException(401)
    return authorization.removeprefix("Bearer ")


Account = Annotated[str, Depends(current_account)]
Protect = Callable[[Callable[..., Any]], Callable[..., Any]]


async def charge(order: Any) -> dict[str, Any]:
    await asyncio.sleep(WAIT)
    return {**RECEIPT, "amount": order["amount"]}


def charge_sync(order: Any) -> dict[str, Any]:
    time.sleep(WAIT)
    return {**RECEIPT, "amount": order["amount"]}


def plain_application() -> FastAPI:
    """The least that FastAPI can do. Authentication is further out, as it must be if a middleware makes the claim."""
    app = FastAPI()

    @app.post("/payments", status_code=201)
    async def pay(request: Request) -> JSONResponse:
        return JSONResponse(await charge(await request.json()), 201)

    return app


class Order(BaseModel):
    amount: int
    currency: str
    description: str = ""


class Receipt(BaseModel):
    id: str
    status: str
    amount: int
    note: str


def model_application(
    protect: Protect = lambda endpoint: endpoint, *, route_class: type[APIRoute] = APIRoute, **route: Any
) -> FastAPI:
    """As FastAPI's own pages write it: the body and the answer are models. It knows whose request it is."""
    app = FastAPI()
    app.router.route_class = route_class

    @app.post("/payments", status_code=201, **route)
    @protect
    async def pay(order: Order, account: Account) -> Receipt:
        return Receipt(**await charge({"amount": order.amount}))

    return app


def bare_plain(url: str) -> Any:
    return plain_application()


def bare_model(url: str) -> Any:
    return model_application()


def bare_sync(url: str) -> Any:
    """What a synchronous function costs by itself: FastAPI runs it in its thread pool."""
    app = FastAPI()

    @app.post("/payments", status_code=201)
    def pay(order: Order, account: Account) -> Receipt:
        return Receipt(**charge_sync({"amount": order.amount}))

    return app


# Ours ---------------------------------------------------------------------------------------------


def ours_model(url: str) -> Any:
    """The README's way: a decorator that stands on the application's own authentication. Optional, so that requests
    without a key get through and can be measured too."""
    from retrysafe import Policy
    from retrysafe.web.fastapi import idempotent

    return _install(model_application(idempotent(scope=current_account, policy=Policy(mode="optional"))), url)


def ours_dependency(url: str) -> Any:
    """The same as a dependency, for whole routers."""
    from retrysafe import Policy
    from retrysafe.web.fastapi import idempotent

    claim = Depends(idempotent(scope=current_account, policy=Policy(mode="optional")))
    return _install(model_application(dependencies=[claim]), url)


def _install(app: FastAPI, url: str) -> FastAPI:
    from retrysafe import RetrySafe
    from retrysafe.web.fastapi import install

    safe = RetrySafe(url)
    safe.migrate()
    install(app, safe=safe)
    return app


def ours_edge_plain(url: str) -> Any:
    """The middleware alone, for applications that are authenticated further out: a replay never reaches FastAPI. This
    is the place where most other packages stand."""
    from retrysafe import Policy, RetrySafe
    from retrysafe.web.asgi import IdempotencyMiddleware

    safe = RetrySafe(url)
    safe.migrate()
    return IdempotencyMiddleware(
        plain_application(),
        safe=safe,
        scope=lambda request: request.headers["authorization"],
        policy=Policy(mode="optional"),
    )


# Others -------------------------------------------------------------------------------------------


def idemkit_redis(url: str) -> Any:
    from idemkit import HttpConfig, IdempotencyMiddleware
    from idemkit.backends.redis import RedisBackend

    config = HttpConfig(scope=lambda request: "account-7")
    return IdempotencyMiddleware(plain_application(), backend=RedisBackend.from_url(url), config=config)


def idemkit_postgres(url: str) -> Any:
    from idemkit import HttpConfig, IdempotencyMiddleware

    config = HttpConfig(scope=lambda request: "account-7")
    return IdempotencyMiddleware(plain_application(), backend=_open_idemkit_postgres(url), config=config)


def _open_idemkit_postgres(url: str) -> Any:
    import subprocess

    from idemkit.backends.postgres import PostgresBackend

    subprocess.run([sys.executable, "-m", "idemkit.cli", "init-pg", url], check=True, stdout=subprocess.DEVNULL)
    return PostgresBackend.from_url(url)


def idemkit_route_redis(url: str) -> Any:
    from idemkit.backends.redis import RedisBackend

    return _idemkit_route(RedisBackend.from_url(url))


def idemkit_route_postgres(url: str) -> Any:
    return _idemkit_route(_open_idemkit_postgres(url))


def _idemkit_route(backend: Any) -> Any:
    """Its way inside FastAPI: a route class, which reads the scope from the request."""
    from idemkit import HttpConfig
    from idemkit.contrib.fastapi import idempotent_route

    config = HttpConfig(scope=lambda request: request.headers["authorization"])
    return model_application(route_class=idempotent_route(backend=backend, config=config))


def fik_redis(url: str) -> Any:
    from fastapi_idempotency_key import IdempotencyMiddleware, RedisBackend

    return IdempotencyMiddleware(plain_application(), backend=RedisBackend(redis_url=url))


def fik_sqlite(path: str) -> Any:
    from fastapi_idempotency_key import IdempotencyMiddleware, SQLiteBackend

    return IdempotencyMiddleware(plain_application(), backend=SQLiteBackend(path))


def powertools_redis(url: str) -> Any:
    """Synchronous, so its function runs in the thread pool. The key is part of what it hashes, as its documentation has
    it for a client's own keys."""
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
    from redis import Redis

    store = RedisCachePersistenceLayer(client=Redis.from_url(url, decode_responses=True))
    config = IdempotencyConfig(event_key_jmespath="key")

    @idempotent_function(data_keyword_argument="asked", persistence_store=store, config=config)
    def protected(asked: dict[str, Any]) -> dict[str, Any]:
        return charge_sync(asked["order"])

    app = FastAPI()

    @app.post("/payments", status_code=201)
    def pay(account: Account, order: Order, idempotency_key: Annotated[str, Header()] = "") -> Receipt:
        asked = order.model_dump()
        if not idempotency_key:
            return Receipt(**charge_sync(asked))
        return Receipt(**protected(asked={"key": f"{account}/{idempotency_key}", "order": asked}))

    return app


def kit_redis(url: str) -> Any:
    from idempotency_kit import (
        AsyncIdempotencyCoordinator,
        IdempotencyDomainService,
        JsonResultAdapter,
        async_idempotent,
    )
    from idempotency_kit.infra.storage.redis.aio.repository import RedisAsyncIdempotencyRepository
    from redis.asyncio import Redis

    repository = RedisAsyncIdempotencyRepository(Redis.from_url(url), key_prefix="kit")
    coordinator = AsyncIdempotencyCoordinator(repository, IdempotencyDomainService())

    @async_idempotent(operation="pay", adapter=JsonResultAdapter(), fingerprint_params=("order",))
    async def protected(
        order: Any, coordinator: AsyncIdempotencyCoordinator, idempotency_key: str | None = None
    ) -> dict[str, Any]:
        return await charge(order)

    app = FastAPI()

    @app.post("/payments", status_code=201)
    async def pay(order: Order, account: Account, idempotency_key: Annotated[str | None, Header()] = None) -> Receipt:
        return Receipt(**await protected(order.model_dump(), coordinator, idempotency_key=idempotency_key))

    return app


def fastapi_idempotency_postgres(url: str) -> Any:
    from contextlib import asynccontextmanager

    from fastapi_idempotency import IdempotencyMiddleware
    from fastapi_idempotency.stores.tortoise import TortoiseStore
    from tortoise.contrib.fastapi import RegisterTortoise

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        models = {"models": ["fastapi_idempotency.stores.tortoise"]}
        async with RegisterTortoise(app, db_url=url, modules=models, generate_schemas=True):
            yield

    app = plain_application()
    app.router.lifespan_context = lifespan
    app.add_middleware(IdempotencyMiddleware, store=TortoiseStore(), scope=lambda request: "account-7")
    return app


KINDS: dict[str, Callable[[str], Any]] = {
    "bare-model": bare_model,
    "bare-plain": bare_plain,
    "bare-sync": bare_sync,
    "ours-edge-plain": ours_edge_plain,
    "ours-model": ours_model,
    "ours-dependency": ours_dependency,
    "idemkit-redis": idemkit_redis,
    "idemkit-postgres": idemkit_postgres,
    "idemkit-route-redis": idemkit_route_redis,
    "idemkit-route-postgres": idemkit_route_postgres,
    "fik-redis": fik_redis,
    "fik-sqlite": fik_sqlite,
    "powertools-redis": powertools_redis,
    "kit-redis": kit_redis,
    "fastapi-idempotency-postgres": fastapi_idempotency_postgres,
}


def tune_collector() -> None:
    """What docs/howto/speedups.md shows: what was imported is never looked at again, and the collector starts late."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def main() -> None:
    import uvicorn

    kind, port, url = sys.argv[1:]
    app = KINDS[kind](url)
    if os.environ.get(TUNED) == "1":
        tune_collector()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        log_level="error",
        access_log=False,
        timeout_keep_alive=3600,
    )


if __name__ == "__main__":
    main()
