"""What a claim costs as the table grows, on PostgreSQL: time against ten thousand rows, and pages touched. And the
reaper: what its bounded batches take, and what claims notice of it."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from benchmarks import ours
from benchmarks.harness import Bench, LoopBench, Table, compare
from benchmarks.machines import Machines
from benchmarks.stores import Pace
from retrysafe.core.ops import Reap
from retrysafe.stores.postgres.dialect import DIALECT
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.names import names
from retrysafe.stores.sql.plans import Plans

SIZES = (10_000, 1_000_000)
FULL = (*SIZES, 10_000_000)
PAUSE = 0.05

FILL = """
INSERT INTO {keys} ({columns})
SELECT sha256(('{salt}' || n)::bytea), 'default', 'http', 'account-7', 'key-' || n, 'POST /payments',
    'json1:33:' || repeat('ab', 32), 'completed', 1, '\\x00', '\\x00', 0, 'uncertain', '', '', '', 201, '',
    repeat('x', 200)::bytea, '', '', 0, 0, 0, {expires}, 86400000000
FROM generate_series(1, {rows}) AS n
"""


def filled(url: str, table: str, size: int, expires: str) -> None:
    """A table with so many settled records, analysed, as a store that has been in use."""
    open_store(f"{url}?table={table}").migrate()
    named = names(table)
    text = FILL.format(keys=named.keys, columns=", ".join(rows.COLUMNS), salt=table, rows=size, expires=expires)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(text)
        db.execute(f"VACUUM ANALYZE {named.keys}")


def buffers(url: str, table: str) -> int:
    """Pages a claim of a new key touches, as the server counts them."""
    statement = Plans(DIALECT, names(table)).texts["insert_or_read"]
    with psycopg.connect(url, autocommit=True) as db:
        for _ in range(3):
            found = db.execute(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, rows.claim_values(ours.new_claim())
            ).fetchone()
    assert found is not None
    top = found[0][0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


@asynccontextmanager
async def one_by_one(url: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """New claims among all the others."""
    async with ours.async_pairs(url, True) as pair:
        yield pair


def growth(machines: Machines, pace: Pace, sizes: tuple[int, ...] = SIZES) -> list[Table]:
    url = machines.postgres
    touched = []
    benches: list[Bench] = []
    for size in sizes:
        table = f"grown_{size}"
        filled(url, table, size, expires="9007199254740991")
        touched.append(f"{size:,} rows: {buffers(url, table)} pages touched by a claim of a new key")
        benches.append(LoopBench(f"{size:,} rows", lambda at=f"{url}?table={table}": one_by_one(at)))  # type: ignore[misc]
    found = compare(
        "PostgreSQL, pairs as the table grows, against ten thousand rows", benches, (1, 16), pace.seconds, pace.rounds
    )
    found.notes += touched
    found.targets = {(f"{sizes[-1]:,} rows", 16): 0.8}
    return [found]


def reaping(machines: Machines, pace: Pace, size: int = 1_000_000) -> list[Table]:
    url, table = machines.postgres, "reaped"
    filled(url, table, size, expires="0")
    at = f"{url}?table={table}"
    quiet = LoopBench("no reaper", lambda: one_by_one(at))
    busy = WithReaper("reaper, 1000 then 50 ms", at)
    found = compare(
        "PostgreSQL, pairs beside the reaper, against without", [quiet, busy], (16,), pace.seconds, pace.rounds
    )
    found.notes.append(f"beside claims the reaper took {busy.rate():,.0f} rows a second")
    store, went, began = open_store(at), 0, time.perf_counter()
    while gone := store.execute(Reap(1000)):
        went += gone
    store.close()
    found.notes.append(
        f"alone, without pauses: {went / (time.perf_counter() - began):,.0f} rows a second, 1000 at a time"
    )
    return [found]


class WithReaper(LoopBench):
    """The same work while another thread reaps as the worker does."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, lambda: one_by_one(url))
        self._url = url
        self._went = 0
        self._seconds = 0.0

    def slice(self, callers: int, seconds: float) -> Any:
        stop, store = threading.Event(), open_store(self._url)

        def reap() -> None:
            began = time.perf_counter()
            while not stop.wait(PAUSE):
                self._went += store.execute(Reap(1000))
            self._seconds += time.perf_counter() - began

        thread = threading.Thread(target=reap)
        thread.start()
        try:
            return super().slice(callers, seconds)
        finally:
            stop.set()
            thread.join()
            store.close()

    def rate(self) -> float:
        return self._went / self._seconds if self._seconds else 0.0


__all__ = ["FULL", "SIZES", "growth", "reaping"]
