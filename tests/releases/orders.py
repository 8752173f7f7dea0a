"""The shop's operation: steps of every sort, and moments at which a process may die between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrysafe import Answer, Policy, Stop, Undo, stage

YEARS = 1e9
"""Seconds: a kept record is gone on with long after it was written."""


@dataclass
class Order:
    item: str
    cents: int


def declared(shop: Any, version: int) -> Any:
    """A saga: a row of ours, a charge that can be refunded, a wire that cannot be repeated, a job. Version 3 is
    accepted now and run by the worker."""
    start = "worker" if version == 3 else "request"
    # A lease longer than any test: one lapses when a test says so, not because the machine was slow.
    policy = Policy(failures="release", retention=float("inf"), start=start, lease=600.0)
    op = shop.safe.operation("place_order", version=version, policy=policy)
    insert = finish = None
    if shop.tx is not None:

        @op.local
        def insert_order(tx: Any, order: Order) -> int:
            cursor = tx.cursor()
            cursor.execute(shop.tx["insert"], (order.item, order.cents))
            shop.at("insert:after")
            return order.cents

        insert = insert_order
    if shop.tx is not None and shop.tx["stages"]:

        @op.local
        def finish_order(tx: Any, order: Order, paid: str) -> Answer:
            stage(tx, "receipts", {"item": order.item, "paid": paid}, order="receipts")
            return Answer(201, {"item": order.item, "paid": paid})

        finish = finish_order

    def refund(order: Order, result: str | None, *, key: str) -> None:
        shop.note("refund", order.item, key)
        shop.at("refund:after")

    @op.foreign(timeout=30, undo=refund, tries=1, key_life=YEARS)
    def charge(order: Order, *, key: str) -> str:
        shop.at("charge:before")
        shop.note("charge", order.item, key)
        shop.at("charge:after")
        return f"ch_{key[:8]}"

    @op.foreign(timeout=30, tries=1, key_life=YEARS)
    def ship(order: Order, *, key: str) -> str:
        shop.at("ship:before")
        shop.note("ship", order.item, key)
        shop.at("ship:after")
        return f"sh_{key[:8]}"

    @op.foreign(timeout=30, repeatable=False)
    def wire(order: Order, *, key: str) -> str:
        shop.note("wire", order.item, key)
        shop.at("wire:after")
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
