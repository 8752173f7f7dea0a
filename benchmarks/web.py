"""Requests per second of the tiny application behind the middleware, against the same application without it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port

from benchmarks.harness import Bench, LoopBench, Table, compare
from benchmarks.http import Client
from benchmarks.machines import Machines
from benchmarks.stores import Pace

ROOT = Path(__file__).resolve().parent.parent
BARE = "bare application"
CALLERS = (32,)


@contextmanager
def served(command: list[str], port: int, folder: Path = ROOT) -> Iterator[None]:
    """A server process, ready to answer."""
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"})
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the application did not start: {' '.join(command)}") from None
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)


def server_of(machines: Machines, url: str | None) -> int:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.webapp", str(port), *([url] if url else [])]
    machines.stack.enter_context(served(command, port))
    return port


@asynccontextmanager
async def new_keys(port: int, expected: int | None = 201) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client, numbers, run = Client(port), count(), os.urandom(8).hex()

    async def one() -> None:
        status = await client.post("/payments", f"{run}-{next(numbers)}")
        assert expected in (status, None), f"answered {status}"

    yield one
    client.close()


@asynccontextmanager
async def replays(port: int, expected: int | None = 201) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client, numbers, run = Client(port), count(), os.urandom(8).hex()
    for number in range(64):
        await client.post("/payments", f"{run}-{number}")

    async def one() -> None:
        status = await client.post("/payments", f"{run}-{next(numbers) % 64}")
        assert expected in (status, None), f"answered {status}"

    yield one
    client.close()


@asynccontextmanager
async def keyless(port: int) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    client = Client(port)
    yield lambda: client.post("/payments", None)
    client.close()


def web(machines: Machines, pace: Pace) -> list[Table]:
    urls = {
        "Redis, no AOF": machines.redis_memory,
        "Redis, AOF always": machines.redis,
        "PostgreSQL": machines.postgres,
        "SQLite": f"sqlite:///{machines.sqlite('web')}",
        "memory": "memory://web",
    }
    ports = {name: server_of(machines, url) for name, url in urls.items()}
    bare = server_of(machines, None)
    tables = []
    for title, make in (("new keys", new_keys), ("replays", replays), ("no key", keyless)):
        base = LoopBench(BARE, lambda make=make: make(bare))  # type: ignore[misc]
        ours: list[Bench] = [
            LoopBench(name, lambda port=port, make=make: make(port))  # type: ignore[misc]
            for name, port in ports.items()
            if title != "no key" or name == "memory"
        ]
        table = compare(
            f"Web application, {title}, against the bare application", [base, *ours], CALLERS, pace.seconds, pace.rounds
        )
        table.targets = TARGETS[title]
        tables.append(table)
    return tables


TARGETS: dict[str, dict[tuple[str, int], float]] = {
    "new keys": {("Redis, no AOF", 32): 0.70, ("PostgreSQL", 32): 0.60, ("SQLite", 32): 0.60},
    "replays": {("Redis, no AOF", 32): 0.85, ("PostgreSQL", 32): 0.85, ("SQLite", 32): 0.85},
    "no key": {},
}
