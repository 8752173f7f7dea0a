"""A body that the application may have to get again."""

from __future__ import annotations

import io
from typing import Any

from retrysafe import Policy
from retrysafe.web.asgi import AsgiBody, IdempotencyMiddleware
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.routes import Route
from retrysafe.web.settings import Settings
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.view import view_from_scope
from retrysafe.web.wsgi_body import WsgiBody as WsgiBody
from tests.web.unit.harness import Caller, World, answer, call, scope_of

PIECES = (b"one ", b"", b"two ", b"three")


def body_of(*pieces: bytes) -> AsgiBody:
    policy = Policy()
    exchange = AsyncExchange(
        Settings(World().safe, None, {}), view_from_scope(scope_of()), Route(policy, "POST /pay"), ["k"]
    )
    exchange.body = made = AsgiBody(exchange, Caller(*pieces).receive)
    return made


async def read(body: AsgiBody) -> bytes:
    whole, more = b"", True
    while more:
        message = await body.receive()
        whole, more = whole + message["body"], message["more_body"]
    return whole


async def test_each_run_reads_the_whole_body() -> None:
    body = body_of(*PIECES)
    assert (await body.receive())["body"] == b"one ", "the application may have begun before anybody claims"
    for runs in range(3):
        assert b"".join(await body.read_all(100, 1, keep=True)) == b"one two three"
        if runs:
            assert await read(body) == b"one two three"
        first = body.exchange
        body.rewind()
        assert (body.exchange.reruns, body.exchange.body, hasattr(first, "body")) == (runs + 1, body, False)


async def test_an_empty_body_is_a_body() -> None:
    body = body_of(b"")
    assert await body.read_all(100, 1, keep=True) == []
    body.rewind()
    assert await read(body) == b""


async def test_what_nobody_will_ask_for_again_is_not_kept() -> None:
    body = body_of(*PIECES)
    assert await body.read_all(100, 1) == [b"one ", b"two ", b"three"]
    assert body._chunks == []


def test_wsgi_reads_the_whole_body_each_time() -> None:
    body = WsgiBody({"wsgi.input": io.BytesIO(b"one two"), "CONTENT_LENGTH": "7"}, 100)
    for _ in range(3):
        assert body.read_all(100, 1, keep=True) == [b"one two"]
        assert (body.read(4), body.read()) == (b"one ", b"two")
        body.rewind()


async def test_a_body_that_is_not_wholly_remembered_is_not_claimed() -> None:
    """The route allows more than the middleware has kept: the fingerprint of half a body would match another
    request."""
    world = World()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await scope[EXCHANGE].claim("alice", Policy(max_body=100))
        await answer(send, 201, [b"done"])

    protected = IdempotencyMiddleware(app, safe=world.safe, policy=Policy(max_body=10))
    told = [await call(protected, scope_of(), b"x" * 11, last) for last in (b"a", b"b")]
    assert [one.status for one in told] == [413, 413]
    assert world.records == []
