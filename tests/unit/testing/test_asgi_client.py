"""The ASGI client of tests and tools: what an application receives from it, and what it reads back."""

from __future__ import annotations

import asyncio
from typing import Any

from retrysafe.testing import asgi_client
from retrysafe.testing.asgi_client import AsgiCall, build_scope


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" ", "more_body": True})
    await send({"type": "http.response.body", "body": body})


async def say_nothing(scope: Any, receive: Any, send: Any) -> None:
    return None


def test_a_post_returns_status_headers_and_body() -> None:
    answer = asyncio.run(asgi_client.post(echo, "/orders", "k1", b'{"amount": 1}'))
    assert answer == (201, {"idempotency-key": "k1"}, b'/orders {"amount": 1}')


def test_without_a_key_no_header_is_sent() -> None:
    assert asyncio.run(asgi_client.post(echo, "/orders")).headers == {}


def test_an_application_that_sends_nothing_has_status_0() -> None:
    assert asyncio.run(asgi_client.post(say_nothing, "/orders")) == (0, {}, b"")


def test_a_body_arrives_in_chunks_and_own_headers_come_last() -> None:
    scope = build_scope("/pay", "k1", method="PUT", headers=[(b"x-more", b"1")], root_path="/shop")
    assert (scope["method"], scope["root_path"], scope["headers"][-1]) == ("PUT", "/shop", (b"x-more", b"1"))
    assert asyncio.run(asgi_client.call(echo, scope, b"one ", b"two")).body == b"/pay one two"


def test_a_client_that_left_is_told_to_the_application() -> None:
    async def leave() -> Any:
        call = AsgiCall(b"{}")
        await call.receive()
        waiting = asyncio.ensure_future(call.receive())
        await asyncio.sleep(0)
        assert not waiting.done(), "the client is still there"
        call.left.set()
        return await waiting

    assert asyncio.run(leave()) == {"type": "http.disconnect"}
