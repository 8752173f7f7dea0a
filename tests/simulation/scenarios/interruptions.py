"""Callers that are cancelled while they wait, and people who undo what is unfinished."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from retrysafe.core.keys import Key
from retrysafe.core.ops import List
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.errors import OperationChanged, RetrySafeError
from retrysafe.policy import Policy
from retrysafe.testing.simulation import AppHost, ClientReply, Handler, Purchase, Scenario
from tests.simulation.scenarios.base import SCOPE, reply_to, report, start_actor

KINDS = ("guard", "rerun", "order", "undone")


def deploy(node: AppHost) -> Handler:
    provider, safe = node.provider, node.safe

    @safe.once("{purchase}", scope="guard", policy=Policy(failures="store"))
    async def charge_unkeyed(purchase: str) -> int:
        return await provider.charge(purchase)

    @safe.once("{purchase}", scope="rerun", policy=Policy(abandoned="rerun", failures="release"))
    async def charge_keyed(purchase: str) -> int:
        return await provider.charge(purchase, f"own-{purchase}")

    async def refund(purchase: str, result: int | None = None, *, key: str) -> None:
        await provider.charge(purchase, key, kind="refund")

    order, undone = safe.operation("order"), safe.operation("undone")

    @order.foreign(timeout=20)
    async def charge(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @order.body
    async def place(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge(purchase)})

    @undone.foreign(timeout=20, undo=refund)
    async def charge_undoably(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @undone.foreign(timeout=20)
    async def reserve(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key, kind="reserve")

    @undone.body
    async def reserve_and_charge(purchase: str) -> Answer:
        await reserve(purchase)
        return Answer(201, {"charge": await charge_undoably(purchase)})

    if node.host.name == "app-1":
        start_actor(undo_what_is_unfinished(node, undone))

    def call(purchase: Purchase) -> Any:
        if purchase.kind == "guard":
            return charge_unkeyed(purchase.name)
        if purchase.kind == "rerun":
            return charge_keyed(purchase.name)
        operation = order if purchase.kind == "order" else undone
        return operation(purchase.name, key=Key(purchase.key, SCOPE))

    async def handle(purchase: Purchase) -> ClientReply:
        if purchase.kind == "undone":
            return await reply_to(call(purchase))
        hurried = (0.001, 0.002, 0.004, 0.1, 3.0, 60.0) if provider.now < 600.0 else (60.0,)
        patience = asyncio.timeout(random.choice(hurried))
        try:
            async with patience:
                return await reply_to(call(purchase))
        except TimeoutError:
            return ClientReply(503, b"cancelled")
        finally:
            if patience.expired():
                node.provider.history.note(node.provider.now, node.host.name, "gave up", purchase.name)

    async def handle_and_compare(purchase: Purchase) -> ClientReply:
        reply = await handle(purchase)
        gave_up = node.provider.history.events[-1]
        is_lost = gave_up.what == "gave up" and gave_up.at == node.provider.now and gave_up.about == purchase.name
        if is_lost and gave_up.where == node.host.name and reply.body != b"cancelled":
            report(node, "I29 cancellations arrive", f"a cancelled call of {purchase.name} was told {reply.body!r}")
        return reply

    return handle_and_compare


async def undo_what_is_unfinished(node: AppHost, undone: Any) -> None:
    """A person who undoes every unfinished order of the kind `undone`."""
    while node.provider.now < 850.0:
        await asyncio.sleep(random.uniform(30.0, 120.0))
        try:
            page = await node.safe.aexecute(List(node.safe.namespace))
            for record in page.records:
                lapsed = record.lapsed(int((1_700_000_000 + node.provider.now) * 1e6))
                if record.target == "undone@1" and (record.state is State.RELEASED or lapsed):
                    await undone.undo_id(record.id, because="the customer changed her mind")
        except (RetrySafeError, OperationChanged, OSError, TimeoutError):
            continue


INTERRUPTIONS = Scenario(deploy, KINDS)
