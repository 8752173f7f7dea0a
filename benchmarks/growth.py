"""What a claim costs as the table grows, on PostgreSQL: time against ten thousand rows, pages touched, bytes of log.

Right after a checkpoint, when the first change of a page puts the whole of it into the log: the larger the table, the
more often a claim is the first.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any, NamedTuple

import psycopg

from benchmarks import ours
from benchmarks.filling import NEVER, filled
from benchmarks.harness import Bench, LoopBench, Pace, compare, titled
from benchmarks.machines import Machines
from benchmarks.tables import Table
from retrysafe.stores.postgres.dialect import DIALECT
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sql.plans import SqlPlans

SIZES = {"quick": (1_000, 10_000), "default": (10_000, 1_000_000), "full": (10_000, 1_000_000, 10_000_000)}
CALLERS = (1, 16)
LOOKS = 20


class Cost(NamedTuple):
    """Of one claim of a new key, as the server counts: pages touched, bytes of log, whole pages among them."""

    pages: float
    log: float
    whole: float

    def __str__(self) -> str:
        return f"{self.pages:.0f} pages touched, {self.log:,.0f} bytes of log with {self.whole:.1f} whole pages in them"


def cost(url: str, table: str) -> Cost:
    """The mean of several. The transaction is rolled back: looking must not make the table larger."""
    explain = (
        "EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) " + SqlPlans(DIALECT, build_names(table)).texts["insert_or_read"]
    )
    found = []
    with psycopg.connect(url) as db:
        for _ in range(LOOKS):
            row = db.execute(explain.encode(), rows.claim_values(ours.new_claim())).fetchone()
            assert row is not None
            found.append(read(row[0][0]["Plan"]))
        db.rollback()
    return Cost(*(sum(each) / LOOKS for each in zip(*found, strict=True)))


def read(plan: dict[str, Any]) -> Cost:
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return Cost(pages, plan.get("WAL Bytes", 0), plan.get("WAL FPI", 0))


def growth(machines: Machines, pace: Pace) -> list[Table]:
    url, sizes = machines.postgres, SIZES[pace.label]
    notes = []
    benches: list[Bench] = []
    for size in sizes:
        table, began = f"grown_{size}", time.perf_counter()
        filled(url, table, size, NEVER)
        print(f"  {size:,} rows loaded in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        notes.append(f"{size:,} rows, claim of a new key after a checkpoint: {cost(url, table)}")
        benches.append(LoopBench(f"{size:,} rows", partial(ours.async_claims, f"{url}?table={table}", True)))
    found = titled("growth", "PostgreSQL: time of a claim as the table grows, against the smallest", benches, "time")
    found.notes = notes
    found.targets = [(f"{sizes[-1]:,} rows", callers, 1.25) for callers in CALLERS]
    return [compare(found, benches, CALLERS, pace)]
