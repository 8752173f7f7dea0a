"""A payment as an operation: a payment row, a charge at the provider, a receipt in the outbox.

Each step is committed before the next one begins, and the provider always gets the same key. So wherever the process
dies, the client's retry or the worker resumes from there, and the card is charged once.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.demo.provider import Provider
from retrysafe.operations import Operation, stage

_SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (
    id text NOT NULL PRIMARY KEY,
    account text NOT NULL,
    amount integer NOT NULL,
    currency text NOT NULL,
    charge text
)
"""

_FIELDS = ("id", "account", "amount", "currency", "charge")


@dataclass
class CheckoutForm:
    """The input of a payment. The account is a field of it, because the worker has no request to read it from."""

    account: str
    amount: int
    currency: str


@dataclass
class Payment:
    id: str
    amount: int
    currency: str


class Checkout:
    """The demo's own table of payments, and the operation that writes to it."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self._path = folder / "payments.db"
        self._provider = provider
        self.safe = RetrySafe(f"sqlite:///{self._path}", tx=self._path)
        self.safe.migrate()
        with self._connect() as db:
            db.execute(_SCHEMA)
        self.pay = self._declare()
        self.receipts: list[str] = []
        self.safe.publish("receipt")(self._send_receipt)

    def find(self, payment_id: str, account: str) -> dict[str, Any] | None:
        """A payment, for the account that made it."""
        with self._connect() as db:
            query = "SELECT * FROM payments WHERE id = ? AND account = ?"
            found = db.execute(query, (payment_id, account)).fetchone()
        return dict(zip(_FIELDS, found, strict=True)) if found else None

    def _send_receipt(self, job: Job) -> None:
        """Stands for sending an e-mail."""
        self.receipts.append(job.payload.decode())

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def _declare(self) -> Operation:
        operation = self.safe.operation("pay")
        provider = self._provider

        @operation.local
        def open_payment(tx: sqlite3.Connection, wanted: CheckoutForm) -> Payment:
            number = tx.execute("SELECT count(*) FROM payments").fetchone()[0] + 1
            payment = Payment(f"pay_{number:06}", wanted.amount, wanted.currency)
            row = (payment.id, wanted.account, wanted.amount, wanted.currency, None)
            tx.execute("INSERT INTO payments VALUES (?, ?, ?, ?, ?)", row)
            return payment

        @operation.foreign(timeout=20)
        def charge(payment: Payment, *, key: str) -> str:
            charged = provider.charge(payment.amount, payment.currency, key)
            return str(charged["id"])

        @operation.local
        def finish(tx: sqlite3.Connection, payment: Payment, charge: str) -> Answer:
            tx.execute("UPDATE payments SET charge = ? WHERE id = ?", (charge, payment.id))
            stage(tx, "receipt", {"payment": payment.id})
            body = {"id": payment.id, "amount": payment.amount, "currency": payment.currency, "charge": charge}
            return Answer(201, body)

        @operation.body
        def pay(wanted: CheckoutForm) -> Answer:
            payment = open_payment(wanted)
            return finish(payment, charge(payment))

        return pay
