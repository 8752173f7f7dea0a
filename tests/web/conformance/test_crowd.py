"""Many at once: 500 requests with one key against four worker processes."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.web.conformance.conftest import Starter
from tests.web.conformance.targets import TARGETS, Target, new_key

CROWD = 500
SEVERAL = [
    pytest.param(name, store, marks=pytest.mark.store(store), id=f"{name}-{store}")
    for name, launch in TARGETS.items()
    for store in launch.stores
    if launch.workers and len(launch.stores) > 1
]


TRIES = 20
"""How often a client retries after a broken connection. An overloaded server resets some: gunicorn closes a connection
with unread bytes on it."""


async def ask(client: httpx.AsyncClient, target: Target, path: str, key: str) -> tuple[httpx.Response, int]:
    """The answer, and how many connections broke before it: a client that keeps its key sends again."""
    for broken in range(TRIES):
        try:
            return await client.post(path, content=b"{}", headers=target.headers(key)), broken
        except httpx.TransportError as error:
            last = error
    raise AssertionError(f"{TRIES} connections broke one after the other: {last!r}\n{target.log()[-3000:]}")


async def crowd(target: Target, path: str, key: str) -> tuple[list[httpx.Response], int]:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=target.base, timeout=60, limits=limits) as client:
        told = await asyncio.gather(*(ask(client, target, path, key) for _ in range(CROWD)))
    return [answer for answer, _ in told], sum(broken for _, broken in told)


@pytest.mark.parametrize(("name", "store"), SEVERAL)
async def test_one_of_500_runs(start: Starter, name: str, store: str) -> None:
    target, key = start(name, store, workers=4), new_key()
    answers, broken = await crowd(target, "/payments", key)
    done = [answer for answer in answers if answer.status_code == 201]
    busy = [answer for answer in answers if answer.status_code == 409]
    assert len(done) + len(busy) == CROWD, {answer.status_code for answer in answers}
    assert target.executions(key) == 1
    assert len({answer.content for answer in done}) == 1
    first = sum("idempotent-replayed" not in answer.headers for answer in done)
    assert first == 1 or (first == 0 and broken), "the first answer came, or its connection broke"
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in busy)
