"""What all applications share: the store, the two kinds of work, and the counts of their effects.

`enter` writes on its transaction: no constraint prevents a second row, only the fence does. `charge` calls a provider
that recognises its key, as real providers do; every call is counted too.
"""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from retrysafe import RetrySafe
from retrysafe.jobs import JOB, current_job

DATABASE = os.environ["JOBS_DATABASE"]
BROKER = os.environ["JOBS_BROKER"]
QUEUE = urlsplit(DATABASE).path.strip("/")
"""The queue's name on a broker that several runs share. Each run has its own, as it has its own database."""
ON_RABBITMQ = BROKER.startswith("amqp")
LEASE = float(os.environ.get("JOBS_LEASE", "3"))
WORK_SECONDS = 0.01
"""How long a job takes at least, in seconds, so that some jobs are killed in the middle."""

POLICY = JOB.replace(lease=LEASE)
TABLES = """
CREATE TABLE IF NOT EXISTS effects (n integer, token text);
CREATE TABLE IF NOT EXISTS charges (key text PRIMARY KEY, n integer, token text);
CREATE TABLE IF NOT EXISTS calls (n integer);
"""

safe = RetrySafe(DATABASE)


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(DATABASE)


def enter(tx: psycopg.Connection[Any], n: int) -> dict[str, Any]:
    token = uuid4().hex
    tx.execute("INSERT INTO effects VALUES (%s, %s)", [n, token])
    time.sleep(WORK_SECONDS)
    return {"n": n, "token": token}


def charge(n: int) -> dict[str, Any]:
    key = current_job().key("provider")
    with psycopg.connect(DATABASE, autocommit=True) as provider:
        provider.execute("INSERT INTO calls VALUES (%s)", [n])
        provider.execute("INSERT INTO charges VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", [key, n, uuid4().hex])
        row = provider.execute("SELECT token FROM charges WHERE key = %s", [key]).fetchone()
    assert row is not None
    time.sleep(WORK_SECONDS)
    return {"n": n, "token": row[0]}


async def acharge(n: int) -> dict[str, Any]:
    import asyncio

    return await asyncio.to_thread(charge, n)


def migrate() -> None:
    safe.migrate()
    with connect() as connection:
        connection.execute(TABLES)
