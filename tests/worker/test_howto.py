"""The lifespan and the `main` of docs/howto/worker.md run as they stand, with real pools on PostgreSQL: the local step
of an operation that was submitted runs on the loop that opened its pool."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from fastapi import FastAPI
from psycopg_pool import AsyncConnectionPool

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.worker import Worker
from tests.servers.postgres import temporary_database

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "worker.md"
PATIENCE = 120.0


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """A database of its own: the page has the default names of tables, and the worker takes all that it finds."""
    with temporary_database(postgres_url) as url:
        yield url


def run_block(word: str, **names: Any) -> dict[str, Any]:
    """The block of the page that is shown and has this word."""
    (block,) = [
        each for each in re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL) if word in each
    ]
    names.update(asyncio=asyncio, asyncpg=asyncpg, asynccontextmanager=asynccontextmanager, FastAPI=FastAPI)
    names.update(AsyncConnectionPool=AsyncConnectionPool, RetrySafe=RetrySafe, Worker=Worker)
    exec(compile(block, str(PAGE), "exec"), names)
    return names


class Submitted:
    """An operation that only the worker runs. Its local step asks the database."""

    def __init__(self, safe: RetrySafe) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.ran = asyncio.Event()
        operation = safe.operation("ask", policy=Policy(failures="release", start="worker"))

        @operation.local
        async def ask(tx: Any) -> int:
            await tx.execute("SELECT 1")
            self.loops.append(asyncio.get_running_loop())
            return 1

        @operation.body
        async def body() -> Answer:
            await ask()
            self.ran.set()
            return Answer(200, {})

        self.operation = operation

    async def submit_and_wait(self) -> None:
        await self.operation.start(key="k")
        async with asyncio.timeout(PATIENCE):
            await self.ran.wait()
        assert self.loops == [asyncio.get_running_loop()]


@pytest.mark.store("postgres")
async def test_a_lifespan_with_a_pool_of_psycopg(database: str) -> None:
    names = run_block("psycopg_pool", DATABASE=database)
    safe = names["safe"]
    safe.migrate()
    async with names["lifespan"](FastAPI()):
        await Submitted(safe).submit_and_wait()
    await safe.aclose()


@pytest.mark.store("postgres")
async def test_a_worker_with_a_pool_of_asyncpg(database: str) -> None:
    async with RetrySafe(database) as safe:
        safe.migrate()
        submitted = Submitted(safe)
        serving = asyncio.create_task(run_block("asyncpg", DATABASE=database, safe=safe)["serve"]())
        while safe.tx is None and not serving.done():
            await asyncio.sleep(0)
        assert not serving.done(), serving.exception()
        await submitted.submit_and_wait()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
