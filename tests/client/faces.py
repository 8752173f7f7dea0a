"""One interface for the three adapters, so that one test covers all of them: `call("POST", "/x", json={})`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import httpx
import requests

from retrysafe.client import AttemptLog, trail
from retrysafe.client.httpx import AsyncRetryTransport, RetryTransport
from retrysafe.client.requests import RetryAdapter

TIMEOUT = 60.0
"""The timeout of tests in which no answer is late on purpose, in seconds."""
FACES = ("httpx", "async", "requests")

BROKEN = (httpx.TransportError, requests.RequestException)
"""The exceptions that the caller gets if there is no answer in the end."""


@dataclass
class Told:
    status: int
    body: bytes
    headers: dict[str, str]
    trail: AttemptLog | None


Caller = Callable[..., Told]


def _told(response: Any) -> Told:
    lower = {name.lower(): value for name, value in response.headers.items()}
    return Told(response.status_code, response.content, lower, trail(response))


@contextmanager
def calling(face: str, base: str, timeout: float = TIMEOUT, **options: Any) -> Iterator[Caller]:
    """`content=` is the body, for all three."""
    if face == "httpx":
        with httpx.Client(transport=RetryTransport(**options), base_url=base, timeout=timeout) as client:
            yield lambda method, path, **more: _told(client.request(method, path, **more))
    elif face == "async":
        with asyncio.Runner() as runner:
            one = httpx.AsyncClient(transport=AsyncRetryTransport(**options), base_url=base, timeout=timeout)

            async def once(method: str, path: str, **more: Any) -> Told:
                return _told(await one.request(method, path, **more))

            yield lambda method, path, **more: runner.run(once(method, path, **more), context=copy_context())
            runner.run(one.aclose())
    else:
        with requests.Session() as session:
            session.mount("http://", RetryAdapter(**options))
            yield lambda method, path, **more: _told(
                session.request(method, base + path, timeout=timeout, **_form(more))
            )


def _form(more: dict[str, Any]) -> dict[str, Any]:
    if "content" in more:
        more["data"] = more.pop("content")
    return {"allow_redirects": False, **more}
