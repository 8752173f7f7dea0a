"""The memory and waiting places that unknown clients or one busy tenant can take: bounded, and released."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.engine.figures import MAX_LABEL_VALUES, Figures
from retrysafe.engine.instruments import REQUESTS
from retrysafe.web import wsgi
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.key_usage import (
    FIRSTS_WINDOW_SECONDS,
    MAX_CLIENTS,
    MAX_FIRSTS_PER_HOUR,
    MAX_ROWS,
    OTHER_NAME,
    KeyUsageStats,
    hash_client,
)
from retrysafe.web.traffic import Waiters
from tests.web.unit.harness import World, WsgiCall, answer, call, scope_of

# The census ---------------------------------------------------------------------------------------


def test_a_flood_of_paths_does_not_fill_it_for_good() -> None:
    census = KeyUsageStats()
    for number in range(10 * MAX_ROWS):
        census.count(f"POST /wp-login/{number}", "", "missing")
    census.count("POST /orders", "alice", "keyed")
    assert census.table()["POST /orders", hash_client("alice"), "keyed"] == 1


def test_what_is_in_use_stays_through_a_flood() -> None:
    census = KeyUsageStats()
    for number in range(3 * MAX_ROWS):
        census.count(f"POST /wp-login/{number}", "", "missing")
        if number % 1_000 == 0:
            census.count("POST /orders", "alice", "keyed")
    table = census.table()
    assert table["POST /orders", hash_client("alice"), "keyed"] == 1 + 3 * MAX_ROWS // 1_000
    assert sum(table.values()) == 3 * MAX_ROWS + 1 + 3 * MAX_ROWS // 1_000, "nothing is lost of the sums"
    assert table[OTHER_NAME, OTHER_NAME, "missing"] > MAX_ROWS


def test_requests_in_the_figures_are_right_though_rows_are_evicted() -> None:
    census, figures = KeyUsageStats(), Figures()
    census.report_to(figures)
    for number in range(3 * MAX_ROWS):
        census.count(f"POST /wp-login/{number}", "", "missing", "POST unlisted")
        census.count(f"POST /named/{number % 300}", "alice", "keyed", f"POST /named/{number % 300}")
    (metric,) = (metric for metric in figures.snapshot() if metric.instrument is REQUESTS)
    assert metric.series["missing", "POST unlisted"] == 3 * MAX_ROWS
    present = [number for (key, _), number in metric.series.items() if key == "present"]
    assert sum(number for number in present if isinstance(number, int)) == 3 * MAX_ROWS
    assert len(present) <= MAX_LABEL_VALUES + 1, "no label grows without bound (S28)"


def test_many_clients_of_one_route_leave_the_others_alone() -> None:
    census = KeyUsageStats()
    census.count("POST /refunds", "bob", "missing")
    for number in range(5 * MAX_ROWS):
        census.count("POST /orders", f"client-{number}", "keyed")
    census.count("POST /orders", "client-0", "keyed")
    table = census.table()
    assert table["POST /refunds", hash_client("bob"), "missing"] == 1
    assert table["POST /orders", hash_client("client-0"), "keyed"] == 1, "who was forgotten comes back"
    assert len([1 for route, _, _ in table if route == "POST /orders"]) <= MAX_CLIENTS
    assert sum(count for (route, _, _), count in table.items() if route == "POST /orders") == 5 * MAX_ROWS + 1


def test_it_is_bounded_in_bytes() -> None:
    """The worst case: long names, every kind of request, large counts."""
    from retrysafe.web.key_usage import USAGE_KINDS
    from retrysafe.web.paths import MAX_TARGET_CHARS

    tracemalloc.start()
    try:
        census = KeyUsageStats()
        for number in range(2 * MAX_ROWS):
            target = f"POST /{number:x<{MAX_TARGET_CHARS - 6}}"
            for kind in USAGE_KINDS:
                census.count(target, f"client-{number}", kind)
            clients = census._routes[target]
            (row,) = clients.values()
            row[:] = [count + 10**9 for count in row]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 6_000_000, f"{size:,} bytes"


def test_a_long_scope_is_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(200):
            hash_client(f"{number}" + "x" * 100_000)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1_000_000, f"{size:,} bytes"


def test_what_is_seen_for_the_first_time_is_told_so_often_and_again_in_an_hour() -> None:
    now = [0.0]
    census = KeyUsageStats(clock=lambda: now[0])
    told = [census.count(f"POST /{number}", "", "unclaimed") for number in range(3 * MAX_FIRSTS_PER_HOUR)]
    assert sum(told) == MAX_FIRSTS_PER_HOUR
    assert not census.count("POST /0", "", "unclaimed"), "not the first"
    now[0] = FIRSTS_WINDOW_SECONDS
    assert census.count("POST /new", "", "unclaimed")


def test_a_flood_of_keys_nobody_asks_for_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b""]

    middleware = wsgi.IdempotencyMiddleware(app, safe=World().safe)
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        for number in range(3 * MAX_FIRSTS_PER_HOUR):
            WsgiCall(middleware, PATH_INFO=f"/{number}")
    assert len(caplog.records) == MAX_FIRSTS_PER_HOUR


# Waiters ------------------------------------------------------------------------------------------


def taken(waiters: Waiters, scope: str, wanted: int = 1_000) -> int:
    return sum(waiters.enter(scope) for _ in range(wanted))


def test_one_tenant_cannot_take_every_place() -> None:
    waiters = Waiters(100)
    places = [taken(waiters, scope) for scope in ("greedy", "second", "third", "fourth")]
    assert places == [67, 22, 8, 2]
    assert sum(places) <= 100


def test_places_are_given_back() -> None:
    waiters = Waiters(100)
    for _ in range(taken(waiters, "greedy")):
        waiters.leave("greedy")
    assert taken(waiters, "other") == 67
    assert taken(waiters, "few", 5) == 5


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_few_places_are_used_too(limit: int) -> None:
    waiters = Waiters(limit)
    assert 1 <= taken(waiters, "a") <= limit
    assert taken(waiters, "a") == 0


def test_no_places_no_waiting() -> None:
    assert taken(Waiters(0), "a") == 0


async def test_a_tenant_that_waits_for_everything_leaves_room_for_another() -> None:
    """Through the middleware: `greedy` sends one request many times while its first one runs; `modest` waits once."""
    world, go, began = World(), asyncio.Event(), Counter[str]()

    def whose(request: Any) -> str:
        return str(request.headers["x-who"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began[dict(scope["headers"])[b"x-who"].decode()] += 1
        await go.wait()
        await answer(send, 201, [b"done"])

    policy = Policy(busy="wait", wait=600)
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=whose, policy=policy, waiters=9)

    def sent(who: str) -> asyncio.Task[Any]:
        return asyncio.create_task(call(middleware, scope_of(headers=[(b"x-who", who.encode())])))

    async def until(condition: Any) -> None:
        while not condition():
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        firsts = [sent("greedy"), sent("modest")]
        await until(lambda: began["greedy"] and began["modest"])
        crowd = [sent("greedy") for _ in range(20)]
        await until(lambda: sum(one.done() for one in crowd) == 14)
        waits = sent("modest")
        await until(lambda: middleware.settings.waiters._waiting["modest"] == 1 or waits.done())
        go.set()
        answers = [await one for one in [*firsts, waits, *crowd]]
    assert [one.status for one in answers[:3]] == [201, 201, 201]
    assert Counter(one.status for one in answers[3:]) == {201: 6, 409: 14}
    assert began == {"greedy": 1, "modest": 1}
