"""A shop that takes payments. A payment is an operation of two steps: charge the card, then mail the receipt.

If the process is killed in the middle of a step, the next request with the same key resumes at that step. The provider
gets the same key as before, so it charges the card once. The provider reports each charge by a webhook, more than once
if it must. The shop ships one parcel.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, Field

from retrysafe import Answer, Key, Policy, RetrySafe, derive, webhooks
from retrysafe.fastapi import idempotent, install, respond
from retrysafe.webhooks.fastapi import endpoint
from retrysafe.worker import Worker

safe = RetrySafe(os.environ["RETRYSAFE_URL"], namespace="demo")
provider = httpx.AsyncClient(base_url=os.environ["PROVIDER_URL"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    safe.migrate()
    worker = Worker(safe, tick=2, grace=10)  # it finishes payments whose client does not come back
    running = asyncio.create_task(worker.arun())
    yield
    worker.stop()
    await running
    await safe.aclose()


app = FastAPI(title="Shop", lifespan=lifespan)
install(app, safe=safe)


class Payment(BaseModel):
    amount: int = Field(strict=True, gt=0, le=100_000_000, description="in cents")
    currency: str = Field(pattern="^[a-z]{3}$")
    order: str = Field("", max_length=64)


def current_account(authorization: Annotated[str, Header()] = "") -> str:
    return authorization.removeprefix("Bearer ").strip() or "demo"  # your real authentication goes here


checkout = safe.operation("checkout", policy=Policy(mode="optional", failures="release", lease=7))


@checkout.foreign(timeout=2)
async def charge(account: str, payment: Payment, *, key: str) -> str:
    body = {"account": account, **payment.model_dump()}
    answer = await provider.post("/charges", json=body, headers={"Idempotency-Key": key})
    return str(answer.raise_for_status().json()["id"])


@checkout.foreign(timeout=2)
async def mail_receipt(charge_id: str, *, key: str) -> None:
    answer = await provider.post("/receipts", json={"charge": charge_id}, headers={"Idempotency-Key": key})
    answer.raise_for_status()


@checkout.body
async def pay(account: str, payment: Payment) -> Answer:
    charge_id = await charge(account, payment)
    await mail_receipt(charge_id)
    return Answer(201, {"id": charge_id.replace("ch_", "pay_"), **payment.model_dump(), "charge": charge_id})


protected = idempotent(current_account, checkout.policy, strength="operation")


@app.post("/payments", status_code=201)
async def create_payment(
    payment: Payment, account: Annotated[str, Depends(current_account)], key: Annotated[Key | None, Depends(protected)]
) -> Response:
    # A request without a key is a new payment each time. The demo needs that; your API can require a key.
    return respond(await checkout.start(account, payment, key=key or str(uuid4())))


@app.get("/payments/{id}")
async def show_payment(id: str, account: Annotated[str, Depends(current_account)]) -> dict[str, Any]:
    answer = await provider.get(f"/charges/{id.replace('pay_', 'ch_')}")
    charged = answer.json()
    if answer.status_code != 200 or charged["account"] != account:
        raise HTTPException(404, "no such payment")
    return {"id": id, "amount": charged["amount"], "currency": charged["currency"], "charge": charged["id"]}


from_provider = webhooks.Receiver(safe, webhooks.StandardWebhooks(os.environ["WEBHOOK_SECRET"]), lease=7)


@from_provider.on("charge.succeeded")
async def ship(event: webhooks.Event) -> None:
    parcel = {"order": event.json()["data"]["order"]}
    headers = {"Idempotency-Key": derive(event.key, "warehouse", "parcel")}
    (await provider.post("/parcels", json=parcel, headers=headers)).raise_for_status()


app.post("/webhooks/provider")(endpoint(from_provider))
