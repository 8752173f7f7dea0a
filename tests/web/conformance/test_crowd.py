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


async def crowd(target: Target, path: str, key: str) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=target.base, timeout=60, limits=limits) as client:
        requests = [client.post(path, content=b"{}", headers=target.headers(key)) for _ in range(CROWD)]
        told = await asyncio.gather(*requests, return_exceptions=True)
    answers = [one for one in told if isinstance(one, httpx.Response)]
    assert len(answers) == CROWD, f"{[one for one in told if one not in answers][:5]}\n{target.log()[-3000:]}"
    return answers


@pytest.mark.parametrize(("name", "store"), SEVERAL)
async def test_one_of_500_runs(start: Starter, name: str, store: str) -> None:
    target, key = start(name, store, workers=4), new_key()
    answers = await crowd(target, "/payments", key)
    done = [answer for answer in answers if answer.status_code == 201]
    busy = [answer for answer in answers if answer.status_code == 409]
    assert len(done) + len(busy) == CROWD, {answer.status_code for answer in answers}
    assert target.executions(key) == 1
    assert len({answer.content for answer in done}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in done) == 1
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in busy)
