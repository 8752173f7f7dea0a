"""Replays and caches: the application's headers stay, unless a shared cache could keep the answer for other clients."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.engine.guard import Ended
from retrysafe.web import status
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.asgi_adapter import response_for_answer
from retrysafe.web.capture import without_shared_caching
from tests.web.unit.harness import Counting, World, call, scope_of, who

KEPT = [
    ["private"],
    ["private, max-age=60"],
    ["Private , Max-Age=60"],
    ["max-age=60", "private"],
    ["no-store"],
    ["no-cache, no-store, must-revalidate"],
    ['ext="a, public", private'],
]
REPLACED = [
    [],
    [""],
    ["public"],
    ["max-age=60"],
    ["no-cache"],
    ["s-maxage=60, must-revalidate"],
    ['private="x-account"'],
    ["no-store, must-understand, max-age=60"],
    ['ext="a, private, b"'],
    ['ext="private'],
]


@pytest.mark.parametrize("lines", KEPT, ids=str)
def test_what_no_shared_cache_may_store_is_said_as_it_was(lines: list[str]) -> None:
    headers = [("Cache-Control", line) for line in lines]
    assert without_shared_caching([("etag", "x"), *headers]) == [("etag", "x"), *headers]


@pytest.mark.parametrize("lines", REPLACED, ids=str)
def test_what_a_shared_cache_could_store_is_not_stored(lines: list[str]) -> None:
    headers = [("Cache-Control", line) for line in lines]
    assert without_shared_caching([*headers, ("etag", "x")]) == [("etag", "x"), ("cache-control", "no-store")]


@pytest.mark.parametrize(
    "name",
    [
        *("CDN-Cache-Control", "Cloudflare-CDN-Cache-Control", "Surrogate-Control", "Fastly-Surrogate-Control"),
        *("X-Accel-Expires", "Edge-Control"),
    ],
)
def test_headers_for_cdns_are_left_out(name: str) -> None:
    assert without_shared_caching([("cache-control", "private"), (name, "max-age=60")]) == [
        ("cache-control", "private")
    ]


@pytest.mark.parametrize(("said", "again"), [("private, max-age=5", "private, max-age=5"), ("max-age=5", "no-store")])
async def test_through_the_middleware(said: str, again: str) -> None:
    app = Counting(headers=[(b"cache-control", said.encode()), (b"cdn-cache-control", b"max-age=5")])
    middleware = IdempotencyMiddleware(app, safe=World().safe, scope=who)
    first, second = [await call(middleware) for _ in range(2)]
    assert first.headers["cache-control"] == said
    assert second.headers["cache-control"] == again
    assert "cdn-cache-control" not in second.headers
    assert [name for name, _ in second.sent[0]["headers"]].count(b"cache-control") == 1


def test_an_operations_answer_is_treated_alike() -> None:
    def told(said: str) -> Any:
        answer = Answer(200, b"x", {"Cache-Control": said})
        return [
            value
            for name, value in response_for_answer(Ended(answer, True, None, None)).headers
            if name.lower() == "cache-control"
        ]  # type: ignore[arg-type]

    assert told("private") == ["private"]
    assert told("max-age=9") == ["no-store"]


async def test_at_a_status_address_nothing_is_cached() -> None:
    """There it is the answer to a GET, which the application does not know about."""
    world = World()
    app = Counting(headers=[(b"cache-control", b"private, max-age=60")])
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, status_path="/status")
    await call(middleware)
    (record,) = world.records
    shown = await call(middleware, scope_of("GET", f"/status/{status.StatusToken(record.id, record.run)}"))
    assert shown.status == 201
    assert shown.headers["cache-control"] == "no-store"
