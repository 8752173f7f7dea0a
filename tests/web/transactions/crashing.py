"""One request to a route in a transaction, by a process that kills itself at a given point. Run by test_kills.py, and
small, so that a process for each point is cheap."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import httpx
import psycopg
from fastapi import Depends, FastAPI
from flask import Flask

from retrysafe import RetrySafe
from retrysafe.web import fastapi, flask
from tests.transactions.crashing import PointedSource, Points

PAID = b'{"paid":true}'
HEADERS = {"Idempotency-Key": "k"}


def account() -> str:
    return "alice"


class Conflict(Exception):
    """What a driver raises when the database rolled a transaction back because of other transactions."""

    sqlstate = "40001"


def pay(url: str, name: str, die_at: int, passed: Any = None, conflicts: int = 0) -> None:
    """Points are before and after each statement, ours and the handler's, around the commit, and after the answer. The
    first `conflicts` runs of the handler end in a conflict."""
    safe, point = RetrySafe(url), Points(die_at)
    sql = f"INSERT INTO effects (value) VALUES ({'?' if url.startswith('sqlite') else '%s'})"

    def connect() -> Any:
        if url.startswith("sqlite"):
            return sqlite3.connect(url.partition("///")[2], check_same_thread=False)
        return psycopg.connect(url.partition("?")[0])

    troubles = [Conflict()] * conflicts

    def handler(tx: Any) -> None:
        point.around(tx.execute, sql, ["a"])
        if troubles:
            raise troubles.pop()

    told = CALLS[name](safe, PointedSource(connect, point), handler)
    point()
    safe.close()
    assert told.content == PAID, told.text
    if passed is not None:
        passed.send(point.passed)


def by_flask(safe: RetrySafe, tx: Any, handler: Any) -> httpx.Response:
    app = Flask("shop")
    idempotency = flask.Idempotency(app, safe=safe)

    @app.post("/pay")
    @idempotency.protect(scope=account, strength="transaction", tx=tx)
    def pay(tx: Any) -> Any:
        handler(tx)
        return PAID, 201

    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as http:
        return http.post("/pay", headers=HEADERS)


def by_fastapi(safe: RetrySafe, tx: Any, handler: Any) -> httpx.Response:
    app, protect = FastAPI(), fastapi.idempotent(account, strength="transaction", tx=tx)
    fastapi.install(app, safe=safe)

    @app.post("/pay", status_code=201)
    def pay(tx: Any = Depends(protect)) -> dict[str, bool]:  # noqa: B008  (FastAPI's way)
        handler(tx)
        return {"paid": True}

    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
            response = await http.post("/pay", headers=HEADERS)
        await safe.async_store.aclose()
        return response

    return asyncio.run(call())


CALLS = {"flask": by_flask, "fastapi": by_fastapi}


def retry(url: str, name: str) -> httpx.Response:
    """What the client does next."""
    with RetrySafe(url) as safe:
        path, plain = url.partition("///")[2], url.partition("?")[0]
        sqlite = url.startswith("sqlite")
        sql = f"INSERT INTO effects (value) VALUES ({'?' if sqlite else '%s'})"
        tx: Any = path if sqlite else (lambda: psycopg.connect(plain))
        return CALLS[name](safe, tx, lambda handle: handle.execute(sql, ["a"]))
