"""Further ways to make a purchase: begun by the worker, waited for, stopped, looked up, undone in several steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Record
from retrysafe.operations import Accepted, Stop, Undo
from retrysafe.policy import Policy
from retrysafe.testing.simulation.application import AppHost, ClientReply, Handler, Purchase
from retrysafe.testing.simulation.fleet import PURCHASE
from retrysafe.testing.simulation.operators import ImpatientOperator, check_operator
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.replies import buy_with, reply_safely
from retrysafe.testing.simulation.scenario import Scenario
from retrysafe.testing.simulation.shop import post
from retrysafe.web.asgi import IdempotencyMiddleware

UNDOS = {"charge": "refund", "label": "unlabel", "points": "unpoints"}


def deploy_worker(node: AppHost) -> Handler:
    """The request only stores the order (202), and the worker begins it. The client asks again until it is done."""
    order = node.safe.operation(
        "by_worker", policy=Policy(start="worker", failures="release", retention=200_000), max_attempts=30
    )

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @order.body
    async def place(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge(purchase)})

    async def buy(purchase: Purchase) -> ClientReply:
        answer = await order(purchase.name, key=Key(purchase.key, "account"))
        if isinstance(answer, Accepted):
            return ClientReply(409, b"accepted")
        return ClientReply(answer.status, answer.body, stored=True)

    return buy


def deploy_web(busy: Any) -> Callable[[AppHost], Handler]:
    """A route whose second caller waits for the first, or is told that it was accepted."""

    def deploy(node: AppHost) -> Handler:
        async def endpoint(scope: Any, receive: Any, send: Any) -> None:
            purchase = scope["path"].removeprefix("/buy/")
            await receive()
            body = json.dumps({"charge": await node.provider.charge(purchase)}).encode()
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        policy = Policy(retention=200_000, busy=busy, wait=10.0)
        web = IdempotencyMiddleware(endpoint, safe=node.safe, scope=lambda request: "account", policy=policy)

        async def buy(purchase: Purchase) -> ClientReply:
            reply = await post(web, f"/buy/{purchase.name}", purchase.key)
            return ClientReply(409, b"accepted") if reply.status == 202 else reply

        return buy

    return deploy


def deploy_wait(node: AppHost) -> Handler:
    """A function whose second caller waits for the first."""

    @node.safe.once("{purchase}", scope="wait", policy=Policy(busy="wait", abandoned="rerun", failures="release"))
    async def charge_keyed(purchase: str) -> int:
        return await node.provider.charge(purchase, f"own-{purchase}")

    async def buy(purchase: Purchase) -> ClientReply:
        return ClientReply(201, b'{"charge": %d}' % await charge_keyed(purchase.name))

    return buy


def deploy_stop(node: AppHost) -> Handler:
    """A first step that may end all of it: nothing was charged, and that is the answer."""
    order = node.safe.operation("stopping")

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def look(purchase: str, *, key: str) -> int:
        number: int = await node.provider.charge(purchase, key, kind="look")
        if purchase.endswith("2"):
            raise Stop(402, {"declined": True})
        return number

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @order.body
    async def place(purchase: str) -> Answer:
        await look(purchase)
        return Answer(201, {"charge": await charge(purchase)})

    return buy_with(order)


def deploy_find(node: AppHost) -> Handler:
    """A step that may not be repeated, to a system that can be asked."""
    order = node.safe.operation("finding")

    async def find(purchase: str, *, key: str) -> int | None:
        return await node.provider.look_up(purchase)

    @order.foreign(timeout=20, repeatable=False, find=find)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase)

    @order.body
    async def place(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge(purchase)})

    return buy_with(order)


def deploy_undos(node: AppHost) -> Handler:
    """Three calls, each with an undo, and an end that undoes them all, for some."""
    saga = node.safe.operation("three_undos", max_attempts=20)

    def declare(kind: str) -> Any:
        async def undo(purchase: str, *, key: str) -> None:
            await node.provider.charge(purchase, key, kind=UNDOS[kind])

        async def call(purchase: str, *, key: str) -> int:
            return await node.provider.charge(purchase, key, kind=kind)

        call.__name__ = f"call_{kind}"
        return saga.foreign(timeout=20, key_life=node.provider.key_life, undo=undo)(call)

    steps = [declare(kind) for kind in UNDOS]

    @saga.body
    async def place(purchase: str) -> Answer:
        numbers = [await step(purchase) for step in steps]
        if purchase.endswith(("1", "3")):
            raise Undo(402, {"undone": True})
        return Answer(201, {"numbers": numbers})

    return buy_with(saga)


DEPLOYS: dict[str, Callable[[AppHost], Handler]] = {
    "by_worker": deploy_worker,
    "wait": deploy_wait,
    "web_wait": deploy_web("wait"),
    "web_accepted": deploy_web("accepted"),
    "stopping": deploy_stop,
    "finding": deploy_find,
    "three_undos": deploy_undos,
}
KINDS = tuple(DEPLOYS)


def deploy(node: AppHost) -> Handler:
    buys = {kind: DEPLOYS[kind](node) for kind in KINDS if kind in node.kinds}

    async def handle(purchase: Purchase) -> ClientReply:
        return await reply_safely(buys[purchase.kind](purchase))

    return handle


async def decide(node: AppHost, record: Record) -> str:
    """A person resumes what was given up. About a call that may not be repeated, the provider's own list decides."""
    about = PURCHASE.findall(record.key)[0]
    charged = node.provider.find(about)
    operation = node.safe.operations.get(record.target)
    if operation is not None and (operation.name != "finding" or not charged):
        await operation.resume_id(record.id, because="the provider's own list, or keys that it still knows")
        return "resumed"
    answer = Answer(201, {"charge": charged[0]["number"]}) if charged and record.kind != "function" else None
    await node.safe.aresolve(
        record.id, happened=bool(charged), answer=answer, because="the provider's own list", attempt=record.attempt
    )
    return "resolved"


def check_undos(outcome: Outcome) -> Iterator[str]:
    """Every call and every undo once, and nothing is left of what was undone (I22, I24)."""
    for purchase in outcome.purchases:
        count = {kind: outcome.provider.count(purchase.name, kind) for kind in (*UNDOS, *UNDOS.values())}
        for kind, many in count.items():
            if many > 1:
                yield f"I24 undo: {purchase.name} has {many} times {kind}"
        for reply in outcome.replies.get(purchase.name, ()):
            for kind, undo in UNDOS.items() if purchase.kind == "three_undos" else ():
                if reply.status == 402 and count[kind] > count[undo]:
                    yield f"I22 undo: {purchase.name} was told that it was undone, and {kind} is not"
                if reply.status == 201 and (count[kind] != 1 or count[undo]):
                    yield f"I22 undo: {purchase.name} was told 201, with {count[kind]} {kind} and {count[undo]} {undo}"


SCENARIO = Scenario(deploy, KINDS, (ImpatientOperator,), (check_undos, check_operator), decide=decide)
