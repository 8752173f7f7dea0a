"""Two applications in one database: their operations have the same names, and each has accounts of its own."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from retrysafe import RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.ops import List
from retrysafe.core.records import Answer
from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import Policy
from retrysafe.testing.simulation import AppHost, ClientReply, Handler, Purchase, Scenario
from retrysafe.worker import Worker
from tests.simulation.scenarios.base import SCOPE, reply_to, report, start_actor

KINDS = ("ours", "theirs")


def deploy(node: AppHost) -> Handler:
    other = RetrySafe(async_store=node.safe.async_store, namespace="other")
    operations = {"ours": declare(node, node.safe, "ours"), "theirs": declare(node, other, "theirs")}
    if node.host.name.startswith("worker"):
        start_actor(Worker(other).arun())
    if node.host.name == "app-2":
        start_actor(resume_whatever(node, operations["ours"]))

    async def handle(purchase: Purchase) -> ClientReply:
        key = Key(purchase.key, SCOPE)
        return await reply_to(operations[purchase.kind](f"{purchase.kind} {purchase.name}", key=key))

    return handle


def declare(node: AppHost, safe: RetrySafe, owner: str) -> Any:
    operation = safe.operation("order", policy=Policy(failures="release", retention=100_000))

    @operation.foreign(timeout=20)
    async def charge(bought: str, *, key: str) -> int:
        whose, _, purchase = bought.partition(" ")
        if whose != owner:
            report(node, "I34 namespaces are walls", f"{owner} charged what {whose} sold")
        return await node.provider.charge(purchase, key)

    @operation.body
    async def place(bought: str) -> Answer:
        return Answer(201, {"charge": await charge(bought)})

    return operation


async def resume_whatever(node: AppHost, ours: Any) -> None:
    """A person of ours who tries to resume every operation in the database, by its id."""
    while node.provider.now < 850.0:
        await asyncio.sleep(random.uniform(10.0, 60.0))
        try:
            page = await node.safe.aexecute(List())
            for record in page.records:
                if record.namespace != node.safe.namespace:
                    await ours.resume_id(record.id)
        except (UsageError, RetrySafeError, OSError):
            continue


WALLS = Scenario(deploy, KINDS)
