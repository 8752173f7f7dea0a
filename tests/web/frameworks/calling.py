"""Calling an application in process, as a client would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx

from retrysafe.core.problem_names import problem_name

ALICE = {"Authorization": "Bearer alice"}
BOB = {"Authorization": "Bearer bob"}


@asynccontextmanager
async def calling(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Exceptions of the application are not raised here: what counts is what a client sees."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def keyed(key: str | None = None, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key or uuid4().hex, **ALICE, **more}


def is_replay(first: httpx.Response, again: httpx.Response) -> bool:
    assert "idempotent-replayed" not in first.headers
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers.get("content-type") == first.headers.get("content-type")
    assert again.headers["idempotent-replayed"] == "true"
    return True


def is_problem(response: httpx.Response, status: int, name: str) -> bool:
    told = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, told["status"], problem_name(told["type"])) == (status, status, name)
    return True
