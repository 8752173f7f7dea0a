"""Costs that need no server: a request without a key, memory per call in flight, the import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from benchmarks.harness import Bench, LoopBench, Pace, compare, titled
from benchmarks.http import BODY
from benchmarks.machines import Machines
from benchmarks.tables import Table
from retrysafe import Policy, RetrySafe
from retrysafe.web.asgi import IdempotencyMiddleware

CALLS = {"quick": 100, "default": 1_000, "full": 1_000}
OPTIONAL = Policy(mode="optional")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def scope(method: str, key: bytes | None) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    if key is not None:
        headers.append((b"idempotency-key", key))
    found = {"type": "http", "method": method, "path": "/payments", "query_string": b"", "headers": headers}
    return {**found, "client": ("127.0.0.1", 1), "root_path": "", "http_version": "1.1"}


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": BODY, "more_body": False}


async def send(message: Any) -> None:
    """Nobody listens."""


def protected(app: Any, safe: RetrySafe) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, safe=safe, scope=lambda request: "account-7", policy=OPTIONAL)


@asynccontextmanager
async def calls(app: Any, method: str, keyed: bool) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    numbers = iter(range(10**9))

    async def one() -> None:
        await app(scope(method, b"key-%d" % next(numbers) if keyed else None), receive, send)

    yield one


def small(machines: Machines, pace: Pace) -> list[Table]:
    safe = RetrySafe("memory://")
    behind = protected(answer, safe)
    benches: list[Bench] = [
        LoopBench("bare application", partial(calls, answer, "POST", False)),
        LoopBench("GET, behind the middleware", partial(calls, behind, "GET", False)),
        LoopBench("POST without a key, optional", partial(calls, behind, "POST", False)),
        LoopBench("POST with a new key, memory store", partial(calls, behind, "POST", True)),
    ]
    title = "In process, without sockets: calls of an application that does nothing"
    table = titled("small", title, benches)
    compare(table, benches, (1,), pace)
    table.notes = [in_flight(machines, CALLS[pace.label]), imported()]
    return [table]


def in_flight(machines: Machines, calls: int) -> str:
    safe = RetrySafe(f"sqlite:///{machines.sqlite('flight')}")
    safe.migrate()
    held = asyncio.run(memory(safe, calls))
    return f"memory: {held / 1024:.1f} KiB for each call in flight beyond the application's own share (SQLite store)"


async def memory(safe: RetrySafe, calls: int) -> float:
    """What the process holds for each request that is being handled. The record itself is in the store."""
    gate = asyncio.Event()
    inside = 0

    async def held(scope: Any, receive: Any, send: Any) -> None:
        nonlocal inside
        inside += 1
        await gate.wait()
        await answer(scope, receive, send)

    async def taken(app: Any, name: bytes) -> float:
        nonlocal inside
        inside = 0
        gate.clear()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tasks = [asyncio.ensure_future(app(scope("POST", name + b"%d" % n), receive, send)) for n in range(calls)]
        deadline = time.monotonic() + 60
        while inside < calls and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        gate.set()
        await asyncio.gather(*tasks)
        return used / calls

    app = protected(held, safe)
    await taken(app, b"warm")
    found = await taken(app, b"p") - await taken(held, b"b")
    await safe.aclose()
    return found


def imported() -> str:
    code = "from time import perf_counter as t; s = t(); import retrysafe; print(1e3 * (t() - s))"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return f"import retrysafe: {min(times):.0f} ms, the least of five"
