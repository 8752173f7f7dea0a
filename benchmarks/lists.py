"""What people ask of a store that holds a million records, through the command line: how long it takes and how much
memory the process needs. And 100,000 jobs of one order, which are published one after the other."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks.crowded import CROWDED
from benchmarks.harness import Pace
from benchmarks.idle import SIZES
from benchmarks.machines import Machines
from benchmarks.tables import Table
from retrysafe import RetrySafe
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from retrysafe.worker import Worker

ROOT = Path(__file__).resolve().parent.parent
STORES = ("PostgreSQL", "SQLite")
JOBS = {"quick": 500, "default": 100_000, "full": 100_000}
PUBLISHING = 20.0
KEY, SCOPE = "the-one", "tenant-7"
LONGEST = 1800


class Cost(NamedTuple):
    seconds: float
    megabytes: float
    """The most it held, of memory."""
    processor: float = 0.0
    """CPU seconds of the command."""

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.megabytes:.0f} MB"


def lists(machines: Machines, pace: Pace) -> list[Table]:
    size, found = SIZES[pace.label], []
    for store in STORES:
        url = CROWDED[store](machines, size)
        table = Table(f"lists-{store.lower()}", f"{store}: the command line at {size:,} records", "", "time")
        table.notes += told(url, size)
        table.notes.append(one_order(url, JOBS[pace.label]))
        print("\n".join(table.notes), file=sys.stderr, flush=True)
        found.append(table)
    return found


def told(url: str, size: int) -> list[str]:
    with_one(url)
    app = "benchmarks.apps.listed:safe"
    digits = claim(KEY, scope=SCOPE, namespace="default").id.hex()[:12]
    asked = {
        "`retrysafe --version`: what starting costs": ["--version"],
        "`keys show KEY --scope SCOPE`": ["keys", "show", url, KEY, "--scope", SCOPE],
        "`keys show` by 12 digits of an id": ["keys", "show", url, digits],
        "`keys show KEY`, ended at its limit of 100,000": ["keys", "show", url, "no-such-key"],
        "`keys show KEY`, through all of them": ["keys", "show", url, KEY, "--examine", str(10 * size)],
        "`keys list --limit 3`": ["keys", "list", url, "--limit", "3"],
        "`keys list --limit 3 --count`": ["keys", "list", url, "--limit", "3", "--count"],
        "`operations --list --limit 3`, none is there": ["operations", app, "--list", "--limit", "3"],
        "`operations --show KEY`, of a call": ["operations", app, "--show", "called"],
    }  # fmt: skip
    return [f"{what}: {cost(url, words)}" for what, words in asked.items()]


def with_one(url: str) -> None:
    """One key that can be found."""
    store = open_store(url)
    store.execute(claim(KEY, scope=SCOPE, namespace="default", now=None))
    store.execute(claim("called", scope="greet", kind="operation", target="greet@1", namespace="default", now=None))
    store.close()


# The process says itself what it held: what the system counts for a child begins with what its parent held.
MEASURED = """
import sys
from retrysafe.cli.main import main
try:
    sys.exit(main(sys.argv[1:]))
finally:
    held = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(held, file=sys.stderr)
"""


def cost(url: str, words: list[str]) -> Cost:
    began, spent = time.perf_counter(), spent_by_children()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        cwd=ROOT,
        env={**os.environ, "RETRYSAFE_BENCH_URL": url},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    seconds = time.perf_counter() - began
    if "Traceback" in done.stderr or "usage:" in done.stderr or done.returncode == 5:  # that measures nothing
        raise RuntimeError(f"{words[:2]} failed: {done.stderr[-1000:]}")
    megabytes = int(done.stderr.rpartition("VmHWM:")[2].split()[0]) / 1024
    return Cost(seconds, megabytes, spent_by_children() - spent)


def spent_by_children() -> float:
    """CPU seconds of all children that have ended. Servers are counted when they stop, after the run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


ORDER_FILL = """
INSERT INTO {outbox} (id, topic, payload, order_key, created, attempts, due, token, dead, error, namespace)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {jobs})
SELECT 'job-' || n, 'ordered', {empty}, 'one', 0, 0, 0, {empty}, 0, '', 'default' FROM numbers
"""


def one_order(url: str, jobs: int) -> str:
    with_jobs(url, jobs)
    with RetrySafe(url) as safe:
        safe.publish("ordered")(lambda job: None)
        worker, sent = Worker(safe), 0
        began = time.perf_counter()
        while sent < jobs and time.perf_counter() - began < PUBLISHING:
            sent += worker.run_once().counts["enqueuer"].published
        each = 1000 * (time.perf_counter() - began) / max(sent, 1)
    return f"{jobs:,} jobs of one order wait, one worker: {each:.2f} ms each ({sent:,} published)"


def with_jobs(url: str, jobs: int) -> None:
    """In one statement, and with statistics as the database gathers them by itself after a while."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
            db.execute(ORDER_FILL.format(outbox="retrysafe_outbox", jobs=jobs, empty="X''"))
        db.close()
        return
    server, _, table = url.partition("?table=")
    with psycopg.connect(server, autocommit=True) as postgres:
        postgres.execute(ORDER_FILL.format(outbox=f"{table}_outbox", jobs=jobs, empty="''::bytea").encode())
        postgres.execute(f"ANALYZE {table}_outbox".encode())
