"""Payments with Litestar: one click, one charge, however often it is sent.

    uvicorn examples.litestar_payments.app:app

    curl -i localhost:8000/payments -H 'Authorization: Bearer alice-token' -H 'Idempotency-Key: k1' \
         -H 'Content-Type: application/json' -d '{"amount": 10000, "currency": "usd"}'
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from litestar import Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, NotFoundException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody

from retrysafe import Policy, RetrySafe, derive
from retrysafe.web.litestar import current_key, idempotent, install

safe = RetrySafe(os.environ.get("RETRYSAFE_URL", "sqlite:///payments.db"))

# Who asks ----------------------------------------------------------------------------------------

TOKENS = {"alice-token": "alice", "bob-token": "bob"}


def signed_in(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    account = TOKENS.get(connection.headers.get("authorization", "").removeprefix("Bearer "))
    if account is None:
        raise NotAuthorizedException("who are you?", headers={"WWW-Authenticate": "Bearer"})
    connection.state.account = account


# The payment provider: somebody else's system, which takes keys of its own -----------------------


class Provider:
    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}

    async def charge(self, amount: int, currency: str, *, key: str) -> str:
        charge = self.charges.setdefault(key, {"id": f"ch_{uuid4().hex[:12]}", "amount": amount, "currency": currency})
        return str(charge["id"])


provider = Provider()

# The API -----------------------------------------------------------------------------------------


@dataclass
class PaymentIn:
    amount: int
    currency: str


@dataclass
class Payment(PaymentIn):
    id: str
    charge: str


payments: dict[tuple[str, str], Payment] = {}
protected = idempotent(scope=lambda request: request.state.account, policy=Policy.preset("create_payment"))


@post("/payments", guards=[signed_in, protected])
async def pay(data: JSONBody[PaymentIn], request: Request[Any, Any, Any]) -> Response[Payment]:
    # A key of ours for the provider: if we die after this call, whoever tries again charges nothing new.
    charge = await provider.charge(data.amount, data.currency, key=derive(current_key(request), "provider", "charge"))
    payment = Payment(data.amount, data.currency, f"pay_{uuid4().hex[:12]}", charge)
    payments[request.state.account, payment.id] = payment
    return Response(payment, headers={"Location": f"/payments/{payment.id}"})


@get("/payments/{id:str}", guards=[signed_in])
async def show(id: FromPath[str], request: Request[Any, Any, Any]) -> Payment:
    if (request.state.account, id) not in payments:
        raise NotFoundException("no such payment")
    return payments[request.state.account, id]


@get("/provider/charges")
async def charges() -> list[dict[str, Any]]:
    return list(provider.charges.values())


app = Litestar([pay, show, charges], on_startup=[safe.migrate], on_shutdown=[safe.aclose])
install(app, safe=safe)
