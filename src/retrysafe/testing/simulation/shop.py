"""The application that our own simulations run: one purchase in each of the ways that retrysafe offers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.errors import AnswerGone, InProgress, NotNow, OutcomeUnknown, RetrySafeError, StoredFailure
from retrysafe.operations import Undo
from retrysafe.policy import Policy
from retrysafe.testing.simulation.application import AppHost, ClientReply, Handler, Purchase
from retrysafe.testing.simulation.changing import CHANGING
from retrysafe.testing.simulation.provider import DECLINED
from retrysafe.testing.simulation.replies import answer_charge, buy_with, reply_to_charge
from retrysafe.testing.simulation.scenario import Scenario
from retrysafe.web.asgi import IdempotencyMiddleware

GUARD = Policy(failures="store")
RERUN = Policy(abandoned="rerun", failures="release")
WEB = Policy(retention=200_000)


def deploy_guard(node: AppHost) -> Handler:
    @node.safe.once("{purchase}", scope="guard", policy=GUARD)
    async def charge_unkeyed(purchase: str) -> int:
        return await node.provider.charge(purchase)

    async def buy(purchase: Purchase) -> ClientReply:
        return reply_to_charge(await charge_unkeyed(purchase.name))

    return buy


def deploy_rerun(node: AppHost) -> Handler:
    @node.safe.once("{purchase}", scope="rerun", policy=RERUN)
    async def charge_keyed(purchase: str) -> int:
        return await node.provider.charge(purchase, f"own-{purchase}")

    async def buy(purchase: Purchase) -> ClientReply:
        return reply_to_charge(await charge_keyed(purchase.name))

    return buy


def deploy_operation(node: AppHost) -> Handler:
    order = node.safe.operation("order")

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @order.body
    async def place(purchase: str) -> Answer:
        return answer_charge(await charge(purchase))

    return buy_with(order)


def deploy_saga(node: AppHost) -> Handler:
    saga = node.safe.operation("saga")

    async def refund(purchase: str, result: int | None = None, *, key: str) -> None:
        if result != DECLINED:
            await node.provider.charge(purchase, key, kind="refund")

    @saga.foreign(timeout=20, key_life=node.provider.key_life, undo=refund)
    async def charge_first(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @saga.foreign(timeout=20, key_life=node.provider.key_life)
    async def ship(purchase: str, *, key: str) -> str:
        if purchase.endswith("2"):
            raise Undo(402, {"shipped": False})
        return "shipped"

    @saga.body
    async def place_and_ship(purchase: str) -> Answer:
        charged = await charge_first(purchase)
        if charged == DECLINED:
            raise Undo(402, {"charge": DECLINED})
        return Answer(201, {"charge": charged, "shipped": await ship(purchase)})

    return buy_with(saga)


def deploy_careful(node: AppHost) -> Handler:
    careful = node.safe.operation("careful")

    @careful.foreign(timeout=20, repeatable=False)
    async def charge_unrepeatably(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase)

    @careful.body
    async def place_carefully(purchase: str) -> Answer:
        return answer_charge(await charge_unrepeatably(purchase))

    return buy_with(careful)


def deploy_web(node: AppHost) -> Handler:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        purchase = scope["path"].removeprefix("/buy/")
        await receive()
        number = await node.provider.charge(purchase)
        status = 402 if number == DECLINED else 201
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": json.dumps({"charge": number}).encode()})

    web = IdempotencyMiddleware(endpoint, safe=node.safe, scope=lambda request: "account", policy=WEB)

    async def buy(purchase: Purchase) -> ClientReply:
        return await post(web, f"/buy/{purchase.name}", purchase.key)

    return buy


DEPLOYS: dict[str, Callable[[AppHost], Handler]] = {
    "guard": deploy_guard,
    "rerun": deploy_rerun,
    "operation": deploy_operation,
    "saga": deploy_saga,
    "careful": deploy_careful,
    "web": deploy_web,
    **CHANGING,
}
KINDS = tuple(DEPLOYS)
"""`guard` charges without a key and may not run twice; `rerun` charges with a key of its own; `operation` and `saga`
are operations without and with an undo; `careful` is one whose step may not be repeated; `web` is a guard behind the
ASGI middleware. The others are operations whose code changes (`changing.py`)."""


def deploy(node: AppHost) -> Handler:
    """Start the shop on one host: only what this history's purchases need, since starting all takes longer than most
    histories."""
    buys = {kind: DEPLOYS[kind](node) for kind in KINDS if kind in node.kinds}

    async def handle(purchase: Purchase) -> ClientReply:
        try:
            return await buys[purchase.kind](purchase)
        except (InProgress, NotNow):
            return ClientReply(409, b"", headers=(("retry-after", "1"),))
        except OutcomeUnknown:
            return ClientReply(500, b"unknown")
        except StoredFailure:
            return ClientReply(500, b"failed", stored=True)
        except AnswerGone:
            return ClientReply(410, b"")
        except (RetrySafeError, TimeoutError, ConnectionError) as error:
            return ClientReply(503, type(error).__name__.encode())

    return handle


async def post(app: Any, path: str, key: str) -> ClientReply:
    """One POST to an ASGI application."""
    headers = [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    status, body = 0, b""
    sent: tuple[tuple[str, str], ...] = ()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, body, sent
        if message["type"] == "http.response.start":
            status = message["status"]
            sent = tuple((name.decode().lower(), value.decode()) for name, value in message["headers"])
        else:
            body += message.get("body", b"")

    await app(scope, receive, send)
    return ClientReply(status, body, headers=sent)


SHOP = Scenario(deploy, KINDS, versions=2, knows_provider=True)
"""What our own campaigns run."""
