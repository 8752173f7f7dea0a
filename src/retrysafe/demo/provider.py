"""The demo's payment provider: another company's service, in a process of its own. It does not use retrysafe.

Like real providers it takes an `Idempotency-Key` with each charge, and answers with the first charge when it gets the
key again (200 instead of 201). A charge without a key is a new charge. Each charge is reported by a webhook. It also
mails receipts and ships parcels, so that the demo has one outside world and not three.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Response
from pydantic import BaseModel

from retrysafe.demo import provider_webhooks
from retrysafe.demo.provider_webhooks import ProviderEvents, add_event

SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    id text NOT NULL PRIMARY KEY,
    amount integer NOT NULL,
    currency text NOT NULL,
    "order" text NOT NULL,
    account text NOT NULL,
    idempotency_key text UNIQUE,
    created real NOT NULL
);
CREATE TABLE IF NOT EXISTS receipts (idempotency_key text PRIMARY KEY, charge text NOT NULL);
CREATE TABLE IF NOT EXISTS parcels (idempotency_key text PRIMARY KEY, "order" text NOT NULL, requests integer NOT NULL);
PRAGMA journal_mode = WAL;
"""

ADD_PARCEL = """
INSERT INTO parcels VALUES (?, ?, 1) ON CONFLICT (idempotency_key) DO UPDATE SET requests = requests + 1
"""
INSERT_CHARGE = "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (idempotency_key) DO NOTHING"

IdempotencyKey = Annotated[str | None, Header()]


class DemoCharge(BaseModel):
    amount: int
    currency: str
    order: str = ""
    account: str = ""


class Receipt(BaseModel):
    charge: str


class Parcel(BaseModel):
    order: str


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(os.environ["PROVIDER_DB"], timeout=30)
    connection.row_factory = sqlite3.Row
    return connection


with closing(connect()) as database:
    database.executescript(SCHEMA + provider_webhooks.SCHEMA)

sender = ProviderEvents(connect)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    sender.start()
    yield
    sender.stop()


app = FastAPI(title="Provider", lifespan=lifespan)


@app.post("/charges", status_code=201)
def create_charge(wanted: DemoCharge, response: Response, idempotency_key: IdempotencyKey = None) -> dict[str, Any]:
    """Charge the card, once for each key."""
    new = f"ch_{secrets.token_hex(8)}"
    row = (new, wanted.amount, wanted.currency, wanted.order, wanted.account, idempotency_key, time.time())
    with closing(connect()) as db, db:
        db.execute(INSERT_CHARGE, row)
        query = "SELECT * FROM charges WHERE id = ? OR idempotency_key = ?"
        found = dict(db.execute(query, (new, idempotency_key)).fetchone())
        if found["id"] == new:
            add_event(db, "charge.succeeded", found)
        else:
            response.status_code = 200
    sender.wake()
    return found


@app.get("/charges")
def list_charges() -> list[dict[str, Any]]:
    with closing(connect()) as db:
        return [dict(row) for row in db.execute("SELECT * FROM charges ORDER BY created")]


@app.get("/charges/{id}")
def show_charge(id: str) -> dict[str, Any]:
    with closing(connect()) as db:
        found = db.execute("SELECT * FROM charges WHERE id = ?", (id,)).fetchone()
    if found is None:
        raise HTTPException(404, "no such charge")
    return dict(found)


@app.post("/receipts", status_code=201)
def mail_receipt(receipt: Receipt, idempotency_key: IdempotencyKey = None) -> dict[str, str]:
    """Mail a receipt, once for each key."""
    with closing(connect()) as db, db:
        db.execute("INSERT OR IGNORE INTO receipts VALUES (?, ?)", (idempotency_key, receipt.charge))
    return {"charge": receipt.charge}


@app.post("/parcels", status_code=201)
def ship_parcel(parcel: Parcel, idempotency_key: IdempotencyKey = None) -> dict[str, str]:
    """Ship a parcel, once for each key."""
    with closing(connect()) as db, db:
        db.execute(ADD_PARCEL, (idempotency_key, parcel.order))
    return {"order": parcel.order}


@app.get("/parcels")
def list_parcels() -> list[dict[str, Any]]:
    with closing(connect()) as db:
        return [dict(row) for row in db.execute('SELECT "order", requests FROM parcels ORDER BY rowid')]


@app.get("/events")
def list_events() -> list[dict[str, Any]]:
    with closing(connect()) as db:
        return [dict(row) for row in db.execute("SELECT id, tries, delivered FROM events ORDER BY rowid")]


@app.post("/events/resend", status_code=202)
def resend_events() -> dict[str, int]:
    """Deliver every event once more, as the dashboards of real providers can."""
    with closing(connect()) as db, db:
        number = db.execute("UPDATE events SET delivered = 0, due = 0").rowcount
    sender.wake()
    return {"resent": number}
