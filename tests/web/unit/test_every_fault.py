"""Every fault: each store call × each point, and a cancellation at each turn of the loop.

The promises in all cases: the handler runs at most once; no client gets an answer that a retry would not get; no key
stays claimed by a dead owner.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.core.ops import Claim, Complete, Suspect
from retrysafe.core.states import State
from retrysafe.testing.faults import Fault
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.web.unit.harness import Caller, World, WsgiCall, answer, call, scope_of, who

FAULTS = [Fault(number, point) for number in (1, 2, 3, 4) for point in ("before", "applied")]
ENDINGS = {"kept": [b"a", b"b"], "too large": [b"x" * 20, b"y"], "raises": None}


class Boom(Exception):
    """The handler's own failure."""


class Story:
    """The answers to one client after the other."""

    def __init__(self) -> None:
        self.runs = 0
        self.told: list[tuple[int, bytes]] = []

    def check(self, pieces: list[bytes] | None) -> None:
        assert self.runs <= 1
        ours = [body for status, body in self.told if b"/problems/" in body]
        theirs = {body for status, body in self.told if b"/problems/" not in body}
        assert len(theirs) <= 1, "two clients, two answers"
        assert all(body == b"".join(pieces or []) for body in theirs)
        final = [body for body in ours if b'/problems/failed/"' in body]
        assert len(set(final)) <= 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.call}-{fault.point}")
@pytest.mark.parametrize("pieces", ENDINGS.values(), ids=ENDINGS)
async def test_a_store_call_fails_asgi(fault: Fault, pieces: list[bytes] | None) -> None:
    story, world = Story(), World(fault)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        story.runs += 1
        if pieces is None:
            raise Boom
        await answer(send, 201, pieces)

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=Policy(max_answer=10))
    for _ in range(3):
        caller = Caller(b"{}")
        with suppress(Boom):
            await middleware(scope_of(), caller.receive, caller.send)
        story.told.append((caller.status, caller.body))
    story.check(pieces)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.call}-{fault.point}")
@pytest.mark.parametrize("pieces", ENDINGS.values(), ids=ENDINGS)
def test_a_store_call_fails_wsgi(fault: Fault, pieces: list[bytes] | None) -> None:
    story, world = Story(), World(fault)

    def app(environ: Any, start_response: Any) -> Any:
        story.runs += 1
        if pieces is None:
            raise Boom
        start_response("201 Created", [])
        return pieces

    middleware = WsgiMiddleware(app, safe=world.safe, scope=who, policy=Policy(max_answer=10))
    for _ in range(3):
        made = WsgiCall(middleware)
        story.told.append((made.status, made.body))
    story.check(pieces)


@pytest.mark.parametrize("turn", range(25))
async def test_a_cancellation_at_each_turn_of_the_loop(turn: int) -> None:
    """I29: in all cases the key is released, completed or uncertain. And it can be used again."""
    world, runs = World(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        runs.append("began")
        for _ in range(5):
            await asyncio.sleep(0)
        await answer(send, 201, [b"done"])

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, grace=0.001)
    caller = Caller(b"{}")
    request = asyncio.create_task(middleware(scope_of(), caller.receive, caller.send))
    for _ in range(turn):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait({request})
    states = [record.state for record in world.records]
    assert State.CLAIMED not in states
    if runs:
        assert states in ([State.COMPLETED], [State.UNCERTAIN])
    again = await call(middleware)
    assert len(runs) <= 1 or states == [State.RELEASED] or not states
    assert again.status == (500 if states == [State.UNCERTAIN] else 201)


async def test_a_scope_that_cancels_all_the_time_does_not_stop_the_work() -> None:
    """anyio cancels again at each turn of the loop. Waiting would keep the loop busy, so the work ends by itself."""
    import anyio

    world, go, server = World(), asyncio.Event(), anyio.CancelScope()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        server.cancel()  # now, when the claim is certainly granted
        await go.wait()
        await answer(send, 201, [b"done"])

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    caller = Caller(b"{}")
    with server:
        await middleware(scope_of(), caller.receive, caller.send)
    assert [record.state for record in world.records] == [State.CLAIMED]
    go.set()
    while middleware._detached:
        await asyncio.sleep(0)
    assert world.records[0].state is State.COMPLETED
    assert (await call(middleware)).body == b"done"


async def test_s22_the_same_statements_for_absent_foreign_and_expired_keys() -> None:
    """Timing is compared by the operations and not by a clock: the store gets the same operations in the same order."""
    world = World()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 201, [b"done"])

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)

    async def statements(name: bytes, key: bytes) -> tuple[list[type[Any]], int, list[str]]:
        before = len(world.script.seen)
        told = await call(middleware, scope_of() | {"headers": [(b"authorization", name), (b"idempotency-key", key)]})
        return world.script.seen[before:], told.status, list(told.headers)

    await statements(b"alice", b"used")
    await statements(b"bob", b"old")
    for record in world.records:
        if record.key == "old":
            world.memory._records[record.id] = record._replace(expires=1)
    absent = await statements(b"bob", b"new")
    assert absent == await statements(b"bob", b"used")
    assert absent == await statements(b"bob", b"old")
    assert absent[0] == [Claim, Complete]
    assert Suspect not in world.script.seen
