"""Deployments between two attempts: a process that starts after a crash runs the next version of the code.

`app-1` never changes, so that what the next version refuses is finished in the end. Two sets of operations: in the
forms of the release before, and in the current ones (`forms="current"`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from retrysafe import RetrySafe
from retrysafe.core.records import Answer
from retrysafe.operations import Stop
from retrysafe.testing.simulation import AppHost, Handler, Outcome, Scenario
from tests.simulation.scenarios.base import is_first_process, run_operations

KINDS = (
    *("inserted", "renamed", "moved_service", "stopped", "other_arguments", "other_input", "wider_input", "failing"),
    "dropped",
)
"""What the next version does: `inserted` puts a foreign step before the charge; `renamed` charges by another step;
`moved_service` declares another service; `stopped` ends before the charge; `other_arguments` charges another amount;
`other_input` cannot read the input; `wider_input` adds a field with a default; `failing` fails before the charge;
`dropped` does not have the step of the charge any more."""


@dataclass
class Basket:
    purchase: str


@dataclass
class WiderBasket:
    purchase: str
    gift: bool = False


def deploy(node: AppHost) -> Handler:
    changes = node.host.name != "app-1"
    newer = changes and not is_first_process()
    safe = RetrySafe(async_store=node.safe.async_store, namespace=node.safe.namespace, forms="current")
    operations = {
        kind: declare(node, safe if kind in CURRENT else node.safe, kind, changes if kind in BESIDE else newer)
        for kind in KINDS
    }
    if node.host.name.startswith("worker"):
        node.safe.operations.update(safe.operations)
    return run_operations(operations)


CURRENT = ("renamed", "stopped", "failing")
BESIDE = ("other_arguments", "other_input")
"""Both versions run from the beginning. `other_arguments` needs no kill then: what a killed process sent with other
arguments left no trace, and its key is sent with the new ones (docs/howto/deploying.md says so)."""
MANY_ATTEMPTS = 5
"""More than a history's crashes use up: an undo then has no cause but the deployment."""


def declare(node: AppHost, safe: RetrySafe, kind: str, newer: bool) -> Any:
    provider, operation = (
        node.provider,
        safe.operation(kind, max_attempts=MANY_ATTEMPTS if kind == "other_input" else 6),
    )
    service = "second" if newer and kind == "moved_service" else "first"
    amount = 2 if newer and kind == "other_arguments" else 1

    async def refund(purchase: str, result: int | None = None, *, key: str) -> None:
        await provider.charge(purchase, key, kind="refund")

    undo = refund if kind in ("other_input", "failing") else None

    async def charge_amount(purchase: str, amount: int = 1, *, key: str) -> int:
        return await provider.charge(purchase, key, amount=amount)

    charge_amount.__name__ = "charge_elsewhere" if newer and kind == "dropped" else "charge"
    charge = operation.foreign(timeout=20, service=service, undo=undo)(charge_amount)

    @operation.foreign(timeout=20, service=service, undo=undo)
    async def charge_again(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    async def unreserve(purchase: str, result: int | None = None, *, key: str) -> None:
        await provider.charge(purchase, key, kind="unreserve")

    @operation.foreign(timeout=20, undo=unreserve if kind == "failing" else None)
    async def reserve(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key, kind="reserve")

    @operation.foreign(timeout=20, tries=1, final=(ValueError,))
    async def refuse(purchase: str, *, key: str) -> int:
        raise ValueError("the newer version refuses")

    async def play(purchase: str) -> Answer:
        if newer and kind == "inserted":
            await reserve(purchase)
        if newer and kind == "stopped":
            raise Stop(402, {"charged": False})
        if kind == "failing":
            await reserve(purchase)
        if newer and kind == "failing":
            await refuse(purchase)
        if newer and kind == "renamed":
            return Answer(201, {"charge": await charge_again(purchase)})
        number = await (charge(purchase) if amount == 1 else charge(purchase, amount))
        if kind in ("other_input", "inserted"):
            await reserve(purchase)
        return Answer(201, {"charge": number})

    return _declare_body(operation, play, kind, newer)


def _declare_body(operation: Any, play: Any, kind: str, newer: bool) -> Any:
    """The body in the form of this version: what it takes is what the two versions differ in."""
    if kind == "other_input" and newer:

        @operation.body
        async def place_renamed(bought: str) -> Answer:
            return await play(bought)  # type: ignore[no-any-return]

    elif kind == "wider_input" and newer:

        @operation.body
        async def place_wider(basket: WiderBasket) -> Answer:
            return await play(basket.purchase)  # type: ignore[no-any-return]

        return lambda purchase, key: operation(WiderBasket(purchase), key=key)
    elif kind == "wider_input":

        @operation.body
        async def place_basket(basket: Basket) -> Answer:
            return await play(basket.purchase)  # type: ignore[no-any-return]

        return lambda purchase, key: operation(Basket(purchase), key=key)
    else:

        @operation.body
        async def place(purchase: str) -> Answer:
            return await play(purchase)  # type: ignore[no-any-return]

    return operation


def check_deployments(outcome: Outcome) -> Iterator[str]:
    """A deployment undoes nothing by itself, and does not tell a client's retry that it is another request (I35)."""
    for purchase in outcome.purchases:
        if purchase.kind == "other_input" and outcome.provider.count(purchase.name, "refund"):
            yield f"I35 no undo without a cause: {purchase.name} was refunded, and nobody asked for it"
        if any(reply.status == 422 for reply in outcome.replies.get(purchase.name, ())):
            yield f"I35 a retry is not refused: {purchase.name} was told to take another key"


DEPLOYMENTS = Scenario(deploy, KINDS, (), (check_deployments,))
