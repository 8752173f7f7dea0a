"""The demo's API, as a plain ASGI application without a framework.

    POST /payments            {"amount": 10000, "currency": "usd"}; send an Idempotency-Key and it is safe to retry
    GET  /payments/{id}
    GET  /provider/charges    what the payment provider has charged; the provider does not use retrysafe

The bearer token is the account. Without one the account is `demo`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.core.keys import Key
from retrysafe.demo.checkout import Checkout, CheckoutForm
from retrysafe.demo.provider import Provider
from retrysafe.engine.guard import Ended
from retrysafe.errors import RetrySafeError
from retrysafe.policy import Policy
from retrysafe.web.asgi import ASGIApp, IdempotencyMiddleware
from retrysafe.web.capture import build_replay_headers
from retrysafe.web.exchange import EXCHANGE
from retrysafe.worker import Worker

JSON = "application/json"
MAX_AMOUNT_CENTS = 1_000_000_00


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", JSON),)


class DemoApp:
    """Routes to three small handlers."""

    def __init__(self, folder: Path) -> None:
        self.provider = Provider(folder / "provider.db")
        self.checkout = Checkout(folder, self.provider)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            reply = await self._route(scope, await _read_body(receive))
            headers = [(name.encode(), value.encode()) for name, value in reply.headers]
            headers.append((b"content-length", str(len(reply.body)).encode()))
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})

    async def _route(self, scope: Any, body: bytes) -> Reply:
        method, path = scope["method"], scope["path"]
        if method == "POST" and path == "/payments":
            return await self._pay(scope, body)
        if method == "GET" and path == "/":
            page = files("retrysafe.demo").joinpath("page.html").read_bytes()
            return Reply(200, page, (("content-type", "text/html; charset=utf-8"),))
        if method == "GET" and path == "/provider/charges":
            return _json_reply(200, await asyncio.to_thread(self.provider.list_charges))
        if method == "GET" and path.startswith("/payments/"):
            found = await asyncio.to_thread(self.checkout.find, path.removeprefix("/payments/"), read_account(scope))
            return _json_reply(200, found) if found else _json_reply(404, {"error": "no such payment"})
        return _json_reply(404, {"error": f"nothing answers to {method} {path}"})

    async def _pay(self, scope: Any, body: bytes) -> Reply:
        form = read_payment(body, read_account(scope))
        if isinstance(form, Reply):
            return form
        exchange = scope[EXCHANGE]
        task = await exchange.identify(read_account(scope), target="POST /payments")
        # Without a key each request is a new operation: the page shows what that costs.
        key = task.key if task is not None else Key(secrets.token_hex(16), read_account(scope))
        try:
            ended = await asyncio.to_thread(self.checkout.pay.start, form, key=key)
        except RetrySafeError as error:
            raise exchange.refusal_error(error) from error
        return build_reply(ended)

    async def _run_lifespan(self, receive: Any, send: Any) -> None:
        """Run a worker beside the server. It finishes operations that a killed server began, and sends the receipts."""
        worker = Worker(self.checkout.safe, tick=1.0, grace=2.0)
        thread = threading.Thread(target=worker.run, name="demo-worker", daemon=True)
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                thread.start()
            else:
                worker.stop()
                await asyncio.to_thread(thread.join)
                await asyncio.to_thread(self.checkout.safe.close)
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def make_app(folder: Path) -> ASGIApp:
    """The demo behind the middleware. Its data is in `folder`."""
    demo = DemoApp(folder)
    return IdempotencyMiddleware(demo, safe=demo.checkout.safe, policy=Policy(mode="optional"))


def read_account(scope: Any) -> str:
    """The account. The demo does not authenticate: the bearer token is the account."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return str(token.strip())
    return "demo"


def read_payment(body: bytes, account: str) -> CheckoutForm | Reply:
    """The payment in a request body, or the error reply."""
    try:
        payment = json.loads(body)
    except ValueError:
        return _json_reply(400, {"error": 'send JSON like {"amount": 10000, "currency": "usd"}'})
    amount = payment.get("amount") if isinstance(payment, dict) else None
    currency = payment.get("currency") if isinstance(payment, dict) else None
    if not isinstance(amount, int) or isinstance(amount, bool) or not 0 < amount <= MAX_AMOUNT_CENTS:
        return _json_reply(
            422, {"error": f"amount is {amount!r}: give cents, a whole number from 1 to {MAX_AMOUNT_CENTS}"}
        )
    if not isinstance(currency, str) or len(currency) != 3 or not currency.isalpha():
        return _json_reply(422, {"error": f"currency is {currency!r}: give three letters, like usd"})
    return CheckoutForm(account, amount, currency.lower())


def build_reply(ended: Ended) -> Reply:
    headers = build_replay_headers(ended.answer.headers) if ended.replayed else ended.answer.headers
    return Reply(ended.answer.status, ended.answer.body, tuple(headers))


async def _read_body(receive: Any) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _json_reply(status: int, value: Any) -> Reply:
    return Reply(status, json.dumps(value).encode())
