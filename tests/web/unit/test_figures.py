"""Figures of HTTP requests: what was sent as a key, and a target that never holds a path (S28)."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.engine.exposition import format_metrics
from retrysafe.engine.figures import Buckets, Figures
from retrysafe.engine.instruments import ACTIVE, CLAIMS, EXECUTIONS, REQUESTS, Instrument
from retrysafe.web import asgi, wsgi
from tests.web.unit.harness import Counting, World, WsgiCall, call, scope_of


def read(figures: Figures, instrument: Instrument) -> dict[tuple[str, ...], float | Buckets]:
    return next((metric.series for metric in figures.snapshot() if metric.instrument is instrument), {})


def whose(request: Any) -> str:
    return "tenant-7"


async def test_requests_are_counted_by_what_they_sent() -> None:
    world = World()
    app = asgi.IdempotencyMiddleware(
        Counting(), safe=world.safe, scope=whose, routes={"POST /orders/{id}/pay": Policy()}
    )
    for key in ("k1", "k1", None, "no spaces\tin keys"):
        await call(app, scope_of(path="/orders/4127/pay", key=key))
    route = "POST /orders/{id}/pay"
    assert read(world.safe.figures, REQUESTS) == {
        ("present", route): 2,
        ("missing", route): 1,
        ("malformed", route): 1,
    }
    assert read(world.safe.figures, CLAIMS) == {("new", "http", route): 1, ("replayed", "http", route): 1}


async def test_a_path_that_is_not_listed_is_no_label() -> None:
    world = World()
    around = asgi.IdempotencyMiddleware(Counting(), safe=world.safe, scope=whose)
    within = wsgi.IdempotencyMiddleware(answer_created, safe=world.safe, scope=whose)
    await call(around, scope_of(path="/orders/4127/secret", key="k1"))
    WsgiCall(within, path="/orders/4128/secret", key="k2")
    shown = format_metrics(world.safe.figures.snapshot())
    assert "secret" not in shown
    assert "tenant" not in shown
    assert read(world.safe.figures, CLAIMS) == {("new", "http", "POST unlisted"): 2}


def answer_created(environ: Any, start_response: Any) -> list[bytes]:
    start_response("201 Created", [])
    return [b"{}"]


@pytest.mark.parametrize(("status", "error"), [(201, ""), (404, ""), (500, "500")])
async def test_an_execution_is_measured_and_says_how_it_failed(status: int, error: str) -> None:
    world = World()
    app = asgi.IdempotencyMiddleware(Counting(status=status), safe=world.safe, scope=whose)
    await call(app, scope_of(key="k1"))
    ((labels, buckets),) = read(world.safe.figures, EXECUTIONS).items()
    assert labels == ("http", "POST unlisted", error)
    assert isinstance(buckets, Buckets)
    assert buckets.total == 1
    assert read(world.safe.figures, ACTIVE) == {("http",): 0}


async def test_a_handler_that_raises_is_measured_too() -> None:
    world = World()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("no such order")

    app = asgi.IdempotencyMiddleware(broken, safe=world.safe, scope=whose)
    with pytest.raises(LookupError):
        await call(app, scope_of(key="k1"))
    assert set(read(world.safe.figures, EXECUTIONS)) == {("http", "POST unlisted", "LookupError")}
    assert read(world.safe.figures, ACTIVE) == {("http",): 0}
