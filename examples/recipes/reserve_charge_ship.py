"""Reserve, charge, ship: a saga. When shipping is impossible the money goes back and the stock too."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from retrysafe import Answer, RetrySafe
from retrysafe.operations import Operation, Undo


class Shop:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        db = sqlite3.connect(self.path)
        db.executescript(
            "CREATE TABLE stock (item TEXT PRIMARY KEY, left INTEGER); INSERT INTO stock VALUES ('book', 3);"
        )
        db.close()
        self.safe = RetrySafe(f"sqlite:///{self.path}", tx=self.path)
        self.safe.migrate()
        self.charged: dict[str, int] = {}
        self.refunded: set[str] = set()
        self.carrier_is_on_strike = False
        self.order = self._declare()

    def left(self) -> int:
        db = sqlite3.connect(self.path)
        try:
            return int(db.execute("SELECT left FROM stock").fetchone()[0])
        finally:
            db.close()

    def _declare(self) -> Operation:
        order = self.safe.operation("order")

        def put_back(tx: sqlite3.Connection, item: str) -> None:
            tx.execute("UPDATE stock SET left = left + 1 WHERE item = ?", (item,))

        def refund(result: str | None, *, key: str) -> None:
            if result is not None:  # None: nobody knows whether it was charged; ask the provider then
                self.refunded.add(result)

        @order.local(undo=put_back)
        def reserve(tx: sqlite3.Connection, item: str) -> str:
            taken = tx.execute("UPDATE stock SET left = left - 1 WHERE item = ? AND left > 0", (item,))
            if not taken.rowcount:
                raise Undo(409, {"error": "sold out"})
            return item

        @order.foreign(undo=refund)
        def charge(cents: int, *, key: str) -> str:
            self.charged.setdefault(key, cents)
            return key

        @order.foreign
        def ship(item: str, *, key: str) -> str:
            if self.carrier_is_on_strike:
                raise Undo(503, {"error": "nobody delivers today"})
            return f"parcel with a {item}"

        @order.body
        def place(item: str, cents: int) -> Answer:
            charge_id = (reserve(item), charge(cents))[1]
            return Answer(201, {"charge": charge_id, "parcel": ship(item)})

        return place
