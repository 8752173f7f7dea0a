"""Payments with FastAPI: one click, one charge, however often it is sent.

    uvicorn examples.fastapi_payments.app:app

    curl -i localhost:8000/payments -H 'Authorization: Bearer alice-token' -H 'Idempotency-Key: k1' \
         -H 'Content-Type: application/json' -d '{"amount": 10000, "currency": "usd"}'

Send it again: the same payment, `Idempotent-Replayed: true`, one charge in /provider/charges.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from retrysafe import Answer, Key, Policy, RetrySafe, derive
from retrysafe.console import Console, ConsoleRequest, Operator
from retrysafe.web.fastapi import idempotent, install, respond

safe = RetrySafe(os.environ.get("RETRYSAFE_URL", "sqlite:///payments.db"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    safe.migrate()
    yield
    await safe.aclose()


app = FastAPI(title="Payments", lifespan=lifespan)
install(app, safe=safe)

# Who asks ----------------------------------------------------------------------------------------

TOKENS = {"alice-token": "alice", "bob-token": "bob"}
REFUSED: dict[int | str, dict[str, Any]] = {401: {"description": "No token, or one nobody knows"}}
bearer = HTTPBearer(auto_error=False)


def current_account(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> str:
    account = TOKENS.get(credentials.credentials) if credentials else None
    if account is None:
        raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Bearer"})
    return account


# The console, for the people who operate this: http://localhost:8000/console/ ---------------------

OPERATORS = {"olga-token": "olga"}


def find_operator(request: ConsoleRequest) -> Operator | None:
    name = OPERATORS.get(request.headers.get("authorization", "").removeprefix("Bearer "))
    return Operator(name) if name else None


app.mount("/console", Console(safe, authenticate=find_operator).asgi)

# The payment provider: somebody else's system, which takes keys of its own -----------------------


class Provider:
    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}

    async def charge(self, amount: int, currency: str, *, key: str) -> str:
        charge = self.charges.setdefault(key, {"id": f"ch_{uuid4().hex[:12]}", "amount": amount, "currency": currency})
        return str(charge["id"])


provider = Provider()

# The API -----------------------------------------------------------------------------------------


class PaymentIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: int = Field(strict=True, gt=0, le=10**9, description="In the smallest unit")
    currency: str = Field(pattern="^[a-z]{3}$")


class Payment(PaymentIn):
    id: str
    charge: str


payments: dict[tuple[str, str], Payment] = {}


@app.post("/payments", status_code=201, responses=REFUSED)
@idempotent(scope=current_account, policy=Policy.preset("create_payment"))
async def pay(
    order: PaymentIn,
    response: Response,
    account: Annotated[str, Depends(current_account)],
    key: Key,
) -> Payment:
    # A key of ours for the provider: if we die after this call, whoever tries again charges nothing new.
    charge = await provider.charge(order.amount, order.currency, key=derive(key, "provider", "charge"))
    payment = Payment(id=f"pay_{uuid4().hex[:12]}", charge=charge, **order.model_dump())
    payments[account, payment.id] = payment
    response.headers["Location"] = f"/payments/{payment.id}"
    return payment


# The same as an operation: it survives a crash at any instruction, and a retry goes on where it stopped.
buy = safe.operation("buy", version=1)


@buy.foreign(timeout=20)
async def charge(amount: int, currency: str, *, key: str) -> str:
    return await provider.charge(amount, currency, key=key)


@buy.body
async def bought(amount: int, currency: str) -> Answer:
    return Answer(201, {"charge": await charge(amount, currency)})


@app.post("/orders", status_code=201, responses=REFUSED, response_model=dict[str, str])
@idempotent(scope=current_account, policy=buy.policy, strength="operation")
async def order(order: PaymentIn, key: Key) -> Response:
    return respond(await buy.start(order.amount, order.currency, key=key))


@app.get("/payments/{id}", responses={**REFUSED, 404: {"description": "You have no such payment"}})
async def show(id: str, account: Annotated[str, Depends(current_account)]) -> Payment:
    if (account, id) not in payments:
        raise HTTPException(404, "no such payment")
    return payments[account, id]


@app.get("/provider/charges")
async def charges() -> list[dict[str, Any]]:
    return list(provider.charges.values())
