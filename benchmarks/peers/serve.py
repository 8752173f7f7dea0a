"""The tiny application behind one package: `serve.py KIND PORT URL`. Runs in the peers' environment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

WAIT = 0.0005

app = FastAPI()


@app.post("/payments", status_code=201)
async def pay(request: Request) -> JSONResponse:
    await request.body()
    await asyncio.sleep(WAIT)
    return JSONResponse({"id": "pay_4127", "status": "succeeded", "amount": 10000, "note": "x" * 140}, 201)


def ours(url: str) -> Any:
    from retrysafe import RetrySafe
    from retrysafe.web.asgi import IdempotencyMiddleware

    safe = RetrySafe(url)
    safe.migrate()
    return IdempotencyMiddleware(app, safe=safe, scope=lambda request: "account-7")


def idemkit_redis(url: str) -> Any:
    from idemkit import HttpConfig, IdempotencyMiddleware
    from idemkit.backends.redis import RedisBackend

    return IdempotencyMiddleware(
        app, backend=RedisBackend.from_url(url), config=HttpConfig(scope=lambda r: "account-7")
    )


def idemkit_postgres(url: str) -> Any:
    from idemkit import HttpConfig, IdempotencyMiddleware
    from idemkit.backends.postgres import PostgresBackend

    subprocess.run([sys.executable, "-m", "idemkit.cli", "init-pg", url], check=True)
    return IdempotencyMiddleware(
        app, backend=PostgresBackend.from_url(url), config=HttpConfig(scope=lambda r: "account-7")
    )


def fik_redis(url: str) -> Any:
    from fastapi_idempotency_key import IdempotencyMiddleware, RedisBackend

    return IdempotencyMiddleware(app, backend=RedisBackend(redis_url=url))


def fik_sqlite(path: str) -> Any:
    from fastapi_idempotency_key import IdempotencyMiddleware, SQLiteBackend

    return IdempotencyMiddleware(app, backend=SQLiteBackend(path))


KINDS: dict[str, Any] = {
    "bare": lambda url: app,
    "ours": ours,
    "idemkit-redis": idemkit_redis,
    "idemkit-postgres": idemkit_postgres,
    "fik-redis": fik_redis,
    "fik-sqlite": fik_sqlite,
}

if __name__ == "__main__":
    kind, port, url = sys.argv[1:]
    options: dict[str, Any] = {"log_level": "error", "access_log": False, "timeout_keep_alive": 3600}
    uvicorn.run(KINDS[kind](url), host="127.0.0.1", port=int(port), **options)
