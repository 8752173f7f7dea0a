"""What a worker with nothing to do costs as the store grows: a round at few records and at many, a tenth of them
released guards that need nobody. And the outbox: from the commit to the publisher, and jobs in a second."""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.crowded import CROWDED
from benchmarks.harness import Bench, Pace, ThreadBench, compare, titled
from benchmarks.machines import Machines
from benchmarks.tables import Table
from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import Job, Stage
from retrysafe.operations import stage
from retrysafe.worker import Worker

SIZES = {"quick": 2_000, "default": 1_000_000, "full": 1_000_000}
FEW = 1_000
LOOKS = {"quick": 20, "default": 200, "full": 500}
JOBS = {"quick": 200, "default": 5_000, "full": 20_000}


@contextmanager
def rounds(url: str) -> Iterator[Any]:
    with RetrySafe(url) as safe:
        safe.publish("*")(lambda job: None)
        worker = Worker(safe)
        yield worker.run_once


def idle(machines: Machines, pace: Pace) -> list[Table]:
    many = SIZES[pace.label]
    found = []
    for store, fill in CROWDED.items():
        benches: list[Bench] = [
            ThreadBench(f"{count:,} records", partial(rounds, fill(machines, count))) for count in (FEW, many)
        ]
        table = titled(
            f"idle-{store.lower()}", f"{store}: an idle round of the worker, against few records", benches, "time"
        )
        table.targets = [(f"{many:,} records", 1, 3.0)]
        found.append(compare(table, benches, (1,), pace))
    found[0].notes += [lag(machines, LOOKS[pace.label]), throughput(machines, JOBS[pace.label])]
    return found


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
