"""Costs that need no server: a request without a key, memory per call in flight, the import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import tracemalloc
from typing import Any

from benchmarks.harness import Row, Sample, Table
from benchmarks.http import BODY
from benchmarks.stores import Pace
from retrysafe import Policy, RetrySafe
from retrysafe.web.asgi import IdempotencyMiddleware

CALLS = 1_000


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


def small(machines: Any, pace: Pace) -> list[Table]:
    safe = RetrySafe("memory://")
    optional = IdempotencyMiddleware(answer, safe=safe, scope=lambda request: "a", policy=Policy(mode="optional"))
    kinds = {
        "bare application": (answer, "POST", False),
        "GET, behind the middleware": (optional, "GET", False),
        "POST without a key, optional": (optional, "POST", False),
        "POST with a new key, memory store": (optional, "POST", True),
    }
    table = Table("In process, without sockets: CPU of a request", "bare application")
    rows = [asyncio.run(cost(name, *kind, rounds=pace.rounds)) for name, kind in kinds.items()]
    for row in rows:
        row.ratio = row.least = row.most = rows[0].median("cpu") / row.median("cpu")
    table.rows = rows
    table.notes = [f"{asyncio.run(memory(safe)) / 1024:.1f} KiB for each call in flight", imported()]
    return [table]


async def cost(name: str, app: Any, method: str, keyed: bool, rounds: int) -> Row:
    samples = []
    for number in range(rounds + 1):
        began = time.process_time()
        for call in range(CALLS):
            await app(scope(method, b"%d-%d" % (number, call) if keyed else None), receive, send)
        cpu = 1e6 * (time.process_time() - began) / CALLS
        samples.append(Sample(1e6 / cpu, 0.0, 0.0, cpu))
    return Row(name, 1, 1.0, 1.0, 1.0, samples[1:])


async def memory(safe: RetrySafe) -> float:
    """What the process holds for each request that is being handled, the application's own share left out."""
    gate = asyncio.Event()

    async def held(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await answer(scope, receive, send)

    async def taken(app: Any, name: bytes) -> float:
        gate.clear()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tasks = [asyncio.ensure_future(app(scope("POST", name + b"%d" % n), receive, send)) for n in range(CALLS)]
        for _ in range(10):
            await asyncio.sleep(0)
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        gate.set()
        await asyncio.gather(*tasks)
        return used / CALLS

    protected = IdempotencyMiddleware(held, safe=safe, scope=lambda request: "a")
    return await taken(protected, b"p") - await taken(held, b"b")


def imported() -> str:
    code = "from time import perf_counter as t; s = t(); import retrysafe; print(1e3 * (t() - s))"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return f"import retrysafe: {min(times):.0f} ms, the least of five"
