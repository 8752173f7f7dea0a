"""The payments operation of forwarded_key.py as a route: from the client's header to the key that Stripe sees."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, Response
from pydantic import BaseModel

from examples.recipes.forwarded_key import Payment
from retrysafe import Key, RetrySafe
from retrysafe.operations import Operation
from retrysafe.web.fastapi import idempotent, install, respond


class Charge(BaseModel):
    amount: int
    currency: str = "usd"


def current_account(x_account: Annotated[str, Header()]) -> str:
    """Stands for your authentication."""
    return x_account


def application(safe: RetrySafe, pay: Operation) -> FastAPI:
    app = FastAPI()
    install(app, safe=safe)

    @app.post("/payments", status_code=201)
    @idempotent(scope=current_account, strength="operation")
    def payments(charge: Charge, key: Key) -> Response:
        # The account is part of what is stored with the operation: the worker has no request to ask.
        return respond(pay(Payment(key.scope, charge.amount, charge.currency), key=key))

    return app
