"""An application as the command line finds it: `tests.worker.app:safe`. Its places come from the environment."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.operations import Stop, stage
from retrysafe.worker import Pairs

DATABASE = os.environ.get("APP_DATABASE", "app.db")
"""The path of an SQLite file, or a postgresql:// address."""
POSTGRES = DATABASE.startswith("postgresql://")
PROVIDER = os.environ.get("APP_PROVIDER", "provider.db")
LEASE = float(os.environ.get("APP_LEASE", "60"))

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, item text, charge text);
"""
PROVIDER_SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (id integer PRIMARY KEY, item text, key text UNIQUE);
CREATE TABLE IF NOT EXISTS deliveries (job text, payload text);
"""


@dataclass
class Order:
    id: int
    item: str


def connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=60, isolation_level=None)


@cache
def pool() -> ConnectionPool[Any]:
    """Opened when it is first needed: after a fork, and not before."""
    return ConnectionPool(DATABASE, min_size=1, max_size=2, timeout=60, open=True)


def prepare() -> None:
    for path, schema in ((DATABASE, SCHEMA), (PROVIDER, PROVIDER_SCHEMA)):
        if path.startswith("postgresql://"):
            with psycopg.connect(path) as db:
                db.execute(schema.replace("integer PRIMARY KEY", "serial PRIMARY KEY"))
        else:
            with closing(connect(path)) as file:
                file.executescript("PRAGMA journal_mode = WAL;" + schema)
    safe.migrate()


def at_provider(statement: str, *values: Any) -> list[Any]:
    with closing(connect(PROVIDER)) as db:
        return db.execute(statement, values).fetchall()


safe = (
    RetrySafe(f"{DATABASE}?pool_timeout=60&connect_timeout=60", tx=lambda: pool().connection())
    if POSTGRES
    else RetrySafe(f"sqlite:///{DATABASE}?timeout=60", tx=DATABASE)
)
MARK = "%s" if POSTGRES else "?"
policy = Policy(failures="release", start="worker", lease=LEASE)
order = safe.operation("order", policy=policy, max_attempts=1000)


def refund(placed: Order, *, key: str) -> None:
    at_provider("DELETE FROM charges WHERE item = ?", placed.item)


def find(placed: Order, *, key: str) -> str | None:
    found = at_provider("SELECT id FROM charges WHERE key = ?", key)
    return f"ch_{found[0][0]}" if found else None


@order.local
def insert(tx: Any, item: str) -> Order:
    (number,) = tx.execute(f"INSERT INTO orders (item) VALUES ({MARK}) RETURNING id", (item,)).fetchone()
    return Order(number, item)


@order.foreign(timeout=LEASE, undo=refund, find=find)
def charge(placed: Order, *, key: str) -> str:
    if placed.item == "declined":
        raise Stop(402, {"declined": True})
    if placed.item == "broken":
        raise ConnectionError("the provider is down")
    at_provider("INSERT INTO charges (item, key) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", placed.item, key)
    ((number,),) = at_provider("SELECT id FROM charges WHERE key = ?", key)
    return f"ch_{number}"


@order.foreign(timeout=LEASE, repeatable=False)
def print_label(placed: Order, *, key: str) -> str:
    return f"label-{placed.id}"


@order.local
def finish(tx: Any, placed: Order, paid: str) -> Answer:
    tx.execute(f"UPDATE orders SET charge = {MARK} WHERE id = {MARK}", (paid, placed.id))
    stage(tx, "receipt", {"item": placed.item})
    return Answer(201, {"order": placed.id, "charge": paid})


@order.body
def place(item: str, label: bool = False) -> Answer:
    placed = insert(item)
    paid = charge(placed)
    if label:
        print_label(placed)
    return finish(placed, paid)


@safe.publish("receipt")
def deliver(job: Job) -> None:
    at_provider("INSERT INTO deliveries VALUES (?, ?)", job.id, job.payload.decode())


def ours() -> list[str]:
    with closing(connect(DATABASE)) as db:
        return [item for (item,) in db.execute("SELECT item FROM orders WHERE charge IS NOT NULL")]


def theirs() -> list[str]:
    return [item for (item,) in at_provider("SELECT item FROM charges")]


def same(item: str) -> str:
    return item


charges = Pairs(ours, theirs, same)
not_one = object()


def broken() -> Pairs:
    raise RuntimeError("the other side does not answer")
