"""An application on retrysafe, written with what every release since 06229ac has: each kind of record once.

It runs inside child.py, with one release or another. Effects are lines of a ledger file, appended in one write, so
that a test can count what really happened, whoever did it and whoever died.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrysafe import Answer, Policy, RetrySafe, Stop, Undo, stage
from retrysafe.errors import RetrySafeError

SECRET = b"shared with the sender of webhooks"
YEARS = 1e9
"""Seconds: a kept record is gone on with long after it was written."""


@dataclass
class Order:
    item: str
    cents: int


class Shop:
    """`die` names the moment at which this process ends by SIGKILL: `"charge:after"`."""

    def __init__(self, safe: RetrySafe, ledger: str, tx: dict[str, str] | None) -> None:
        self.safe = safe
        self.ledger = Path(ledger)
        self.tx = tx
        self.die = ""
        self.fail = ""
        self.pay = self._function()
        self.apay = self._async_function()
        self.place = self._operation(2)
        self.later = self._operation(3)
        self.asgi = self._asgi()

    def note(self, *words: object) -> None:
        with self.ledger.open("a") as ledger:
            ledger.write(" ".join(map(str, words)) + "\n")

    def at(self, moment: str) -> None:
        if self.fail == moment:
            self.fail = ""
            raise ConnectionError(f"nobody answers at {moment}")
        if self.die == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    # Kinds ----------------------------------------------------------------------------------

    def _function(self) -> Callable[..., Any]:
        @self.safe.once("pay:{order}", scope="shop", policy=Policy.preset("function", wait=60.0))
        def pay(order: str, cents: int) -> dict[str, Any]:
            self.at("pay:before")
            self.note("pay", order, cents)
            self.at("pay:after")
            return {"cents": cents, "order": order, "proof": (1, b"\x00\xff", {"é"})}

        return pay

    def _async_function(self) -> Callable[..., Any]:
        @self.safe.once("apay:{order}", scope="shop", policy=Policy.preset("function", wait=60.0))
        async def apay(order: str, cents: int) -> dict[str, Any]:
            self.note("apay", order, cents)
            return {"cents": cents, "order": order}

        return apay

    def function(self, key: str, cents: int) -> Any:
        return repr(self.pay(key, cents))

    def many(self, keys: list[str], cents: int) -> list[Any]:
        """Four at a time, in threads."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda key: self.function(key, cents), keys))

    def amany(self, keys: list[str], cents: int) -> list[Any]:
        """All at once, on an event loop: they go to the store in batches."""

        async def all_of_them() -> list[Any]:
            try:
                return await asyncio.gather(*(self.apay(key, cents) for key in keys))
            finally:
                await self.safe.async_store.aclose()

        return asyncio.run(all_of_them())

    def http(self, key: str, cents: int) -> Any:
        """One request through the middleware, as a server would make it."""
        return asyncio.run(self._request(key, json.dumps({"cents": cents, "for": "é"}).encode()))

    async def _request(self, key: str, body: bytes) -> Any:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/payments", "raw_path": b"/payments", "query_string": b"a=1", "root_path": "",
            "headers": [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        sent: list[Any] = []
        incoming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return incoming.pop() if incoming else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.asgi(scope, receive, send)
        await self.safe.async_store.aclose()
        start, *parts = sent
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        replayed = told.pop("idempotent-replayed", "") == "true"
        body = b"".join(part.get("body", b"") for part in parts)
        return {"status": start["status"], "headers": told, "body": body, "replayed": replayed}

    def _asgi(self) -> Any:
        from retrysafe.web.asgi import IdempotencyMiddleware

        async def app(scope: Any, receive: Any, send: Any) -> None:
            asked = json.loads((await receive())["body"])
            self.at("http:before")
            self.note("http", dict(scope["headers"])[b"idempotency-key"].decode(), asked["cents"])
            headers = [(b"content-type", b"application/octet-stream"), (b"location", b"/payments/7")]
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": b"\x00\x01", "more_body": True})
            await send({"type": "http.response.body", "body": b"\xff\xfe"})

        policy = Policy(failures="release")
        return IdempotencyMiddleware(app, safe=self.safe, scope=lambda request: "account-1", policy=policy)

    def webhook(self, key: str, cents: int) -> Any:
        from retrysafe.webhooks import Custom, Receiver

        scheme = Custom("sender", SECRET, signature="x-signature", id_field="id", type_field="type")
        receiver = Receiver(self.safe, scheme)

        @receiver.on("paid")
        def paid(event: Any) -> Answer:
            self.at("webhook:before")
            self.note("webhook", key, cents)
            return Answer(200, {"thanks": key})

        body = json.dumps({"id": key, "type": "paid", "cents": cents}).encode()
        signed = {"x-signature": hmac.new(SECRET, body, hashlib.sha256).hexdigest()}
        answered = receiver.receive(signed, body)
        return {"status": answered.status, "body": answered.body}

    def job(self, key: str, cents: int) -> Any:
        from retrysafe.jobs import Fence

        def charge(order: str, cents: int) -> dict[str, Any]:
            self.at("job:before")
            self.note("job", order, cents)
            return {"receipt": order, "cents": cents}

        task = Fence(self.safe).fence(charge, name="charge")
        return task.run(f"job-{key}", (key, cents), {})

    def message(self, key: str, cents: int) -> Any:
        from retrysafe.consumers import Inbox, Message

        inbox = Inbox(self.safe, "billing")

        @inbox.handler
        def handle(message: Any) -> None:
            self.at("message:before")
            self.note("message", key, cents)

        verdict = inbox.process(Message(body=json.dumps({"cents": cents}).encode(), id=key))
        return {"verdict": type(verdict).__name__, "replayed": getattr(verdict, "replayed", None)}

    def tool(self, key: str, cents: int) -> Any:
        from retrysafe.mcp import Tools

        def send_payment(invoice: str, cents: int) -> dict[str, Any]:
            self.at("tool:before")
            self.note("tool", invoice, cents)
            return {"paid": invoice, "cents": cents}

        once = Tools(self.safe, scope="acct-1").once("pay:{invoice}")(send_payment)
        return once(invoice=key, cents=cents, retrysafe_context=None)

    def operation(self, key: str, cents: int, item: str = "book") -> Any:
        return self.place(Order(item, cents), key=key)

    # Operations -----------------------------------------------------------------------------

    def _operation(self, version: int) -> Any:
        """A saga: a row of ours, a charge that can be refunded, a wire that cannot be repeated, a job. Version 3 is
        accepted now and run by the worker."""
        policy = Policy(failures="release", retention=float("inf"), start="worker" if version == 3 else "request")
        op = self.safe.operation("place_order", version=version, policy=policy)
        insert = finish = None
        if self.tx is not None:

            @op.local
            def insert_order(tx: Any, order: Order) -> int:
                cursor = tx.cursor()
                cursor.execute(self.tx["insert"], (order.item, order.cents))
                self.at("insert:after")
                return order.cents

            insert = insert_order
        if self.tx is not None and self.tx["stages"]:

            @op.local
            def finish_order(tx: Any, order: Order, paid: str) -> Answer:
                stage(tx, "receipts", {"item": order.item, "paid": paid}, order="receipts")
                return Answer(201, {"item": order.item, "paid": paid})

            finish = finish_order

        def refund(order: Order, result: str | None, *, key: str) -> None:
            self.note("refund", order.item, key)
            self.at("refund:after")

        @op.foreign(timeout=30, undo=refund, tries=1, key_life=YEARS)
        def charge(order: Order, *, key: str) -> str:
            self.at("charge:before")
            self.note("charge", order.item, key)
            self.at("charge:after")
            return f"ch_{key[:8]}"

        @op.foreign(timeout=30, tries=1, key_life=YEARS)
        def ship(order: Order, *, key: str) -> str:
            self.at("ship:before")
            self.note("ship", order.item, key)
            self.at("ship:after")
            return f"sh_{key[:8]}"

        @op.foreign(timeout=30, repeatable=False)
        def wire(order: Order, *, key: str) -> str:
            self.note("wire", order.item, key)
            self.at("wire:after")
            return f"wi_{key[:8]}"

        @op.body
        def place(order: Order) -> Answer:
            if insert is not None:
                insert(order)
            paid = charge(order)
            if order.item == "wired":
                wire(order)
            if order.item == "undone":
                raise Undo(502, {"error": "out of stock"})
            if order.item == "declined":
                raise Stop(402, {"error": "declined"})
            shipped = ship(order)
            if finish is not None:
                return finish(order, paid)
            return Answer(201, {"item": order.item, "paid": paid, "shipped": shipped})

        return op


def said(error: BaseException) -> dict[str, Any]:
    """An error as a test sees it."""
    return {"error": type(error).__name__, "ours": isinstance(error, RetrySafeError), "message": str(error)[:2000]}
