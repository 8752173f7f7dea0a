"""One operation in several versions of the application's code: what a deployment between two attempts changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrysafe import Answer, Policy

CHANGES = ("none", "field added", "step added before", "step added after", "step removed", "body renamed")
BOUNDARIES = ("insert:after", "charge:before", "charge:after", "ship:before", "ship:after", "finish:after")


@dataclass
class Basket:
    item: str


@dataclass
class BasketWithNote:
    item: str
    note: str = ""


def call(shop: Any, change: str, key: str) -> Any:
    """Declare it as that code does, and call it once."""
    policy = Policy(failures="release", retention=float("inf"), lease=600.0)
    op = shop.safe.operation("deployed", policy=policy)
    typed: Any = BasketWithNote if change == "field added" else Basket

    @op.local
    def insert(tx: Any, item: str) -> str:
        tx.cursor().execute(shop.tx["insert"], (item, 1))
        shop.at("insert:after")
        return item

    def refund(item: str, result: str | None, *, key: str) -> None:
        shop.note("refund", item, key)

    @op.foreign(timeout=30, undo=refund, tries=1)
    def charge(item: str, *, key: str) -> str:
        shop.at("charge:before")
        shop.note("charge", item, key)
        shop.at("charge:after")
        return item

    @op.foreign(timeout=30, tries=1)
    def check(item: str, *, key: str) -> str:
        return item

    @op.foreign(timeout=30, tries=1)
    def ship(item: str, *, key: str) -> str:
        shop.at("ship:before")
        shop.note("ship", item, key)
        shop.at("ship:after")
        return item

    @op.local
    def finish(tx: Any, item: str) -> Answer:
        tx.cursor().execute(shop.tx["insert"], (f"done {item}", 1))
        shop.at("finish:after")
        return Answer(201, {"item": item})

    def place(basket: Any) -> Answer:
        item = insert(basket.item)
        if change == "step added before":
            check(item)
        charge(item)
        if change == "step added after":
            check(item)
        if change != "step removed":
            ship(item)
        return finish(item)

    place.__annotations__ = {"basket": typed, "return": Answer}
    if change == "body renamed":
        place.__name__ = place.__qualname__ = "another_name"
    op.body(place)
    return op(typed(key), key=key)
