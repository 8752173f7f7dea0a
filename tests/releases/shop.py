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
from pathlib import Path
from typing import Any

import forms
from orders import Order, declared

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.errors import RetrySafeError

SECRET = b"shared with the sender of webhooks"


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
        self.keep = self._keeping()
        self.place = declared(self, 2)
        self.later = declared(self, 3)
        self.inboxed = self._receiver("inboxed", inbox=True)
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
        @self.safe.once("pay:{order}", scope="shop", policy=Policy.preset("function", wait=200.0))
        def pay(order: str, cents: int) -> dict[str, Any]:
            self.at("pay:before")
            self.note("pay", order, cents)
            self.at("pay:after")
            return {"cents": cents, "order": order, "proof": (1, b"\x00\xff", {"é"})}

        return pay

    def _async_function(self) -> Callable[..., Any]:
        @self.safe.once("apay:{order}", scope="shop", policy=Policy.preset("function", wait=200.0))
        async def apay(order: str, cents: int) -> dict[str, Any]:
            self.note("apay", order, cents)
            return {"cents": cents, "order": order}

        return apay

    def _keeping(self) -> Callable[..., Any]:
        @self.safe.once("keep:{name}", scope="shop")
        def keep(name: str, value: Any) -> Any:
            self.note("keep", name)
            return value if name not in forms.UNKEPT else name

        return keep

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
        return self.request(key, json.dumps({"cents": cents, "for": "é"}).encode(), "application/json")

    def request(self, key: str, body: bytes, content_type: str) -> Any:
        return asyncio.run(self._request(key, body, content_type.encode()))

    async def _request(self, key: str, body: bytes, content_type: bytes) -> Any:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/payments", "raw_path": b"/payments", "query_string": b"a=1", "root_path": "",
            "headers": [(b"idempotency-key", key.encode()), (b"content-type", content_type)],
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
            asked = (await receive())["body"]
            self.at("http:before")
            self.note("http", dict(scope["headers"])[b"idempotency-key"].decode(), len(asked))
            headers = [(b"content-type", b"application/octet-stream"), (b"location", b"/payments/7")]
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": b"\x00\x01", "more_body": True})
            await send({"type": "http.response.body", "body": b"\xff\xfe"})

        policy = Policy(failures="release")
        return IdempotencyMiddleware(app, safe=self.safe, scope=lambda request: "account-1", policy=policy)

    def _receiver(self, provider: str, *, inbox: bool) -> Any:
        from retrysafe.webhooks import Custom, Receiver

        known: dict[str, Any] = vars(self).setdefault("receivers", {})
        if provider in known:
            return known[provider]
        scheme = Custom(provider, SECRET, signature="x-signature", id_field="id", type_field="type")
        receiver = known[provider] = Receiver(self.safe, scheme, inbox=inbox)

        @receiver.on("paid")
        def paid(event: Any) -> Answer:
            self.at("webhook:before")
            self.note("webhook", event.id, event.json()["cents"])
            return Answer(200, {"thanks": event.id})

        return receiver

    def webhook(self, key: str, cents: int) -> Any:
        return self.delivered(self._receiver("sender", inbox=False), key, cents)

    def inbox(self, key: str, cents: int) -> Any:
        """Taken in now, handled by the worker."""
        return self.delivered(self.inboxed, key, cents)

    def delivered(self, receiver: Any, key: str, cents: int) -> Any:
        body = json.dumps({"id": key, "type": "paid", "cents": cents}).encode()
        signed = {"x-signature": hmac.new(SECRET, body, hashlib.sha256).hexdigest()}
        answered = receiver.receive(signed, body)
        return {"status": answered.status, "body": answered.body}

    def _fence(self) -> tuple[Any, Any]:
        from retrysafe import jobs

        adapter = getattr(jobs, "QueueAdapter", None) or jobs.Fence  # its name in the release before

        def charge(order: str, cents: int) -> dict[str, Any]:
            self.at("job:before")
            self.note("job", order, cents)
            return {"cents": cents, "receipt": order}

        fence = adapter(self.safe)
        return fence, fence.fence(charge, name="charge")

    def job(self, key: str, cents: int) -> Any:
        _, task = self._fence()
        return task.run(f"job-{key}", (key, cents), {})

    def enqueue(self, key: str, cents: int) -> Any:
        fence, task = self._fence()
        sent: list[Any] = []
        told = fence.enqueue(task, (key, cents), key=key, send=sent.append)
        return {"state": told.state, "result": told.result, "sent": len(sent), "id": told.id}

    def perform(self, key: str, cents: int, item: str = "") -> Any:
        """What a worker of the queue does with a delivery; `item` is its id."""
        _, task = self._fence()
        return task.run(item, (key, cents), {})

    def transaction(self, key: str, cents: int) -> Any:
        """Its rows and its answer commit together."""
        assert self.tx is not None, "there is a database"
        with self.safe.transaction(self.safe.tx, key=key, scope="acct-1", request={"cents": cents}) as tx:
            if not tx.replayed:
                tx.handle.cursor().execute(self.tx["insert"], (key, cents))
                tx.answer = Answer(201, {"key": key})
        return {"answer": tx.answer, "replayed": tx.replayed}

    def value(self, key: str, cents: int, item: str = "") -> Any:
        """A function of a rich value, which comes back; with `item` it is called with another one."""
        return repr(self.keep(key, forms.VALUES[key][1 if item else 0]))

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


def said(error: BaseException) -> dict[str, Any]:
    """An error as a test sees it."""
    return {"error": type(error).__name__, "ours": isinstance(error, RetrySafeError), "message": str(error)[:2000]}
