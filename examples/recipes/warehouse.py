"""What the two durable recipes share: somebody else's API, the order, and the effects made safe with retrysafe.

There are three kinds of effect, and each has its own way of happening once when the step around it is run again:

charge   the other side recognises keys: send the step's key
enter    it is a row of our own database: commit it with its receipt
label    a printer that knows nothing: claim first, and if nobody can say how it ended, ask a person
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import sqlalchemy

from retrysafe import Policy, RetrySafe


@dataclass
class OrderIn:
    account: str
    cents: int


class Provider:
    """A payment service that recognises keys, and a label printer that does not."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=20, headers={"connection": "close"})

    def charge(self, order: OrderIn, key: str) -> str:
        return self._post("/charges", {"account": order.account, "cents": order.cents}, {"idempotency-key": key})

    def print_label(self, order: OrderIn) -> str:
        return self._post("/labels", {"account": order.account}, {})

    def _post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        answer = self.http.post(path, json=body, headers=headers)
        answer.raise_for_status()
        return str(answer.json()["id"])


class Effects:
    """Each takes the key of the step that asks for it; calling it again with that key changes nothing."""

    enter: Callable[..., int]
    label: Callable[..., str]

    def __init__(self, safe: RetrySafe, database: str, provider: Provider, lease: float = 60.0) -> None:
        self.engine = sqlalchemy.create_engine(database)
        self.provider = provider
        with self.engine.begin() as tables:
            tables.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS ledger (account text, cents integer)"))

        @safe.transactional("{key}", scope="ledger", tx=self.engine)
        def enter(tx: sqlalchemy.Connection, key: str, order: OrderIn) -> int:
            row = {"account": order.account, "cents": order.cents}
            tx.execute(sqlalchemy.text("INSERT INTO ledger VALUES (:account, :cents)"), row)
            return order.cents

        # A worker that died while it printed leaves the outcome unknown: OutcomeUnknown, and no second label.
        @safe.once("{key}", scope="labels", policy=Policy.preset("function", lease=lease))
        def label(key: str, order: OrderIn) -> str:
            return provider.print_label(order)

        self.enter, self.label = enter, label

    def charge(self, key: str, order: OrderIn) -> str:
        return self.provider.charge(order, key)

    def close(self) -> None:
        self.engine.dispose()
        self.provider.http.close()
