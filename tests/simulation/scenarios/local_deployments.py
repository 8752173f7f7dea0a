"""Deployments between two attempts of operations with local steps, in a database that is not the store's.

As in `deployments.py`: a process that starts after a crash runs the next version, and `app-1` never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.testing.simulation import AppHost, Handler, Outcome, Scenario
from retrysafe.testing.simulation.database import SimulatedDatabase
from retrysafe.testing.simulation.local_shop import count_rows
from tests.simulation.scenarios.base import is_first_process, run_operations

KINDS = ("squeezed", "became_local")
"""What the next version does: `squeezed` puts a local step before two others; `became_local` declares the charge, which
was a foreign step, as a local one. Both versions begin runs, and go on with those of the other."""


def deploy(node: AppHost) -> Handler:
    node.safe.tx = node.actors["database"]
    newer = node.host.name != "app-1" and not is_first_process()
    operations = {"squeezed": declare_squeezed(node, newer), "became_local": declare_became_local(node, newer)}
    return run_operations(operations)


def declare_squeezed(node: AppHost, newer: bool) -> Any:
    operation = node.safe.operation("squeezed")

    @operation.local
    async def record(tx: Any, purchase: str, row: str) -> str:
        await tx.write(purchase, row)
        return row

    @operation.foreign(timeout=20)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @operation.local
    async def check(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "check")
        return "checked"

    @operation.body
    async def place(purchase: str) -> Answer:
        if newer:
            await check(purchase)
        await record(purchase, "first")
        await record(purchase, "second")
        return Answer(201, {"charge": await charge(purchase)})

    return operation


def declare_became_local(node: AppHost, newer: bool) -> Any:
    operation = node.safe.operation("became_local")

    async def charge_by_row(tx: Any, purchase: str) -> int:
        await tx.write(purchase, "charge by row")
        return 0

    async def charge_by_call(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    charge_by_row.__name__ = charge_by_call.__name__ = "charge"
    charge: Any = operation.local(charge_by_row) if newer else operation.foreign(timeout=20)(charge_by_call)

    @operation.body
    async def place(purchase: str) -> Answer:
        return Answer(303, {"charge": await charge(purchase)})

    return operation


def check_rows(outcome: Outcome) -> Iterator[str]:
    """Each row once; and either a charge or its row, not both (I16, I35)."""
    for purchase in outcome.purchases:
        rows = count_rows(outcome, purchase.name)
        for what, count in rows.items():
            if count > 1:
                yield f"I16 phase once: {purchase.name} has {count} rows {what!r}"
        if rows["charge by row"] and outcome.provider.count(purchase.name):
            yield f"I35 nothing is forgotten: {purchase.name} was charged by the provider, and again by a row"


LOCAL_DEPLOYMENTS = Scenario(deploy, KINDS, (SimulatedDatabase,), (check_rows,))
