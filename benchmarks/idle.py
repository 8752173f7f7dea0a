"""What a worker with nothing to do costs as the store grows: a round at few records and at many, a tenth of them
released guards that need nobody. And the outbox: from the commit to the publisher, and jobs in a second."""

from __future__ import annotations

import secrets
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.filling import NEVER, filled
from benchmarks.harness import Bench, Pace, ThreadBench, compare, titled
from benchmarks.machines import Machines
from benchmarks.tables import Table
from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import Job, Stage
from retrysafe.core.ops import Complete, Release
from retrysafe.core.records import Answer as Stored
from retrysafe.operations import stage
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql import rows
from retrysafe.testing.builders import claim
from retrysafe.worker import Worker

SIZES = {"quick": 2_000, "default": 1_000_000, "full": 1_000_000}
FEW = 1_000
REDIS_SIZES = {"quick": 2_000, "default": 100_000, "full": 1_000_000}
"""Loaded claim by claim, where the others take one statement."""

RELEASED = 10
"""Of so many one is a released guard."""

LOOKS = {"quick": 20, "default": 200, "full": 500}
JOBS = {"quick": 200, "default": 5_000, "full": 20_000}


@contextmanager
def rounds(url: str) -> Iterator[Any]:
    with RetrySafe(url) as safe:
        safe.publish("*")(lambda job: None)
        worker = Worker(safe)
        yield worker.run_once


def idle(machines: Machines, pace: Pace) -> list[Table]:
    size = SIZES[pace.label]
    found = []
    for store, make in (("PostgreSQL", postgres), ("SQLite", sqlite), ("Redis", redis)):
        many = REDIS_SIZES[pace.label] if store == "Redis" else size
        benches: list[Bench] = [
            ThreadBench(f"{count:,} records", partial(rounds, make(machines, count))) for count in (FEW, many)
        ]
        table = titled(
            f"idle-{store.lower()}", f"{store}: an idle round of the worker, against few records", benches, "time"
        )
        table.targets = [(f"{many:,} records", 1, 3.0)]
        found.append(compare(table, benches, (1,), pace))
    found[0].notes += [lag(machines, LOOKS[pace.label]), throughput(machines, JOBS[pace.label])]
    return found


# Filled stores -----------------------------------------------------------------------------------


def postgres(machines: Machines, size: int) -> str:
    import psycopg

    table = f"idle_{size}"
    filled(machines.postgres, table, size, NEVER)
    with psycopg.connect(machines.postgres, autocommit=True) as db:
        db.execute(
            f"UPDATE {table}_keys SET state = 'released', status = NULL WHERE get_byte(id, 0) % {RELEASED} = 0".encode()
        )
        db.execute(f"VACUUM (ANALYZE) {table}_keys".encode())
    return f"{machines.postgres}?table={table}"


def sqlite(machines: Machines, size: int) -> str:
    path = machines.sqlite(f"idle_{size}")
    store = open_store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    columns = ", ".join(rows.COLUMNS)
    marks = ", ".join("?" * len(rows.COLUMNS))
    with sqlite3.connect(path) as db:
        db.executemany(f"INSERT INTO retrysafe_keys ({columns}) VALUES ({marks})", (row(n) for n in range(size)))
    db.close()
    return f"sqlite:///{path}"


def row(number: int) -> tuple[Any, ...]:
    """As FILL makes it."""
    released = number % RELEASED == 0
    fingerprint = f"json1:33:{'ab' * 32}"
    return (
        secrets.token_bytes(32), "default", "http", "account-7", f"key-{number}", "POST /payments", fingerprint,
        "released" if released else "completed", 1, b"\0", b"\0", 0, "uncertain", "", b"", b"",
        None if released else 201, "", b"x" * 200, "", "", 0, 0, 0, int(NEVER), 86_400_000_000,
    )  # fmt: skip


def redis(machines: Machines, size: int) -> str:
    url = f"{machines.redis_memory}?prefix=idle{size}:"
    store = open_store(url)
    store.migrate()
    for start in range(0, size, 1000):
        numbers = range(start, min(start + 1000, size))
        claims = [claim(f"key-{number}", namespace="default", scope="account-7", now=None) for number in numbers]
        granted = store.execute_many(claims)
        store.execute_many([settled(each.record, number) for each, number in zip(granted, numbers, strict=True)])
    store.close()
    return url


def settled(record: Any, number: int) -> Any:
    if number % RELEASED == 0:
        return Release(record.id, record.fence)
    return Complete(record.id, record.fence, Stored(201, b"x" * 200))


# The outbox --------------------------------------------------------------------------------------


@contextmanager
def running(safe: RetrySafe) -> Iterator[None]:
    worker, begun = Worker(safe), threading.Event()
    thread = threading.Thread(target=worker.run, args=[lambda done: begun.set()])
    thread.start()
    begun.wait(60)
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def lag(machines: Machines, looks: int) -> str:
    """From the commit of a step to its publisher, in another process's place: another RetrySafe on the same store."""
    import psycopg_pool

    url = f"{machines.postgres}?table=lag"
    seen: list[float] = []
    heard = threading.Event()
    with (
        psycopg_pool.ConnectionPool(machines.postgres, min_size=1, max_size=4) as pool,
        RetrySafe(url, tx=pool) as safe,
        RetrySafe(url) as elsewhere,
    ):
        safe.migrate()
        order = safe.operation("order")

        @order.local
        def enter(tx: Any) -> None:
            stage(tx, "receipt", {})

        @order.body
        def place() -> Answer:
            enter()
            return Answer(201)

        elsewhere.publish("receipt")(lambda job: heard.set())
        with running(elsewhere):
            time.sleep(1.0)  # its listener connects
            for number in range(looks):
                heard.clear()
                order(key=f"k{number}")
                began = time.perf_counter()
                heard.wait(60)
                seen.append(time.perf_counter() - began)
                time.sleep(0.06)  # it has gone back to sleep
    return f"outbox, idle worker: {said(seen)} from the commit to the publisher"


def said(seen: Sequence[float]) -> str:
    ordered = sorted(seen)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {1000 * statistics.median(ordered):.1f} ms, p99 {1000 * p99:.1f} ms"


def throughput(machines: Machines, jobs: int) -> str:
    with RetrySafe(f"{machines.postgres}?table=thr") as safe:
        safe.migrate()
        for topic in ("t", "ordered"):
            order = "one" if topic == "ordered" else ""
            made = [Job(secrets.token_hex(16), topic, b"{}", order) for _ in range(jobs)]
            for start in range(0, jobs, 500):
                safe.execute(Stage(tuple(made[start : start + 500]), namespace=safe.namespace))
        told = []
        for topic in ("t", "ordered"):
            safe.publishers.clear()
            safe.publish(topic)(lambda job: None)
            began, sent = time.perf_counter(), 0
            while sent < jobs:
                sent += Worker(safe).run_once().counts["enqueuer"].published
            told.append(f"{jobs / (time.perf_counter() - began):,.0f}")
        return f"outbox, one worker: {told[0]} jobs a second, {told[1]} of one order"
