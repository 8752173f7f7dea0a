"""A payments endpoint that forwards a derived key: the provider sees the same key however often we try.

The key that reaches Stripe is made from the run of our own operation: the same for every attempt, another one for
another tenant, and another one when our key is used again after it expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stripe

from retrysafe import Answer, Key, RetrySafe
from retrysafe.operations import Operation, Stop, stage


@dataclass
class Payment:
    account: str
    amount: int
    currency: str


def payments(folder: Path, stripe_url: str) -> tuple[RetrySafe, Operation]:
    path = folder / "payments.db"
    safe = RetrySafe(f"sqlite:///{path}", tx=path)
    safe.migrate()
    # Our own retries carry the key; the SDK's would hide from us that there were any.
    client = stripe.StripeClient("sk_test_x", base_addresses={"api": stripe_url}, max_network_retries=0)
    pay = safe.operation("pay")

    @pay.foreign(timeout=20, key_life=24 * 3600)
    def charge(payment: Payment, *, key: str) -> str:
        try:
            made = client.v1.payment_intents.create(
                {"amount": payment.amount, "currency": payment.currency}, {"idempotency_key": key}
            )
        except stripe.CardError as declined:
            raise Stop(402, {"error": declined.code}) from declined  # an answer, not a failure
        return str(made.id)

    @pay.local
    def record(tx: Any, payment: Payment, charge_id: str) -> Answer:
        stage(tx, "receipt", {"account": payment.account, "charge": charge_id})
        return Answer(201, {"id": charge_id})

    @pay.body
    def body(payment: Payment) -> Answer:
        return record(payment, charge(payment))

    return safe, body


def endpoint(pay: Operation, account: str, key: str, amount: int, currency: str) -> Answer:
    """What a route does: the account is the scope, the client's header is the key."""
    answer: Answer = pay(Payment(account, amount, currency), key=Key(key, account))
    return answer
