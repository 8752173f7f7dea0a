"""What claims notice of the reaper on PostgreSQL, and how fast its bounded batches go through a million records."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

from benchmarks import ours
from benchmarks.environment import ROOT
from benchmarks.filling import LONG_AGO, filled
from benchmarks.harness import Bench, LoopBench, Pace, compare, titled
from benchmarks.machines import Machines
from benchmarks.tables import Sample, Table
from retrysafe.core.ops import Reap
from retrysafe.stores.registry import open_store
from retrysafe.worker.reaper import BATCH_ROWS, PAUSE_SECONDS

SIZES = {"quick": 20_000, "default": 1_000_000, "full": 2_500_000}
"""All reapers together must not come to the end of it: one with nothing to do disturbs nobody."""

CALLERS = 16
QUIET = "no reaper"
DEFAULTS = f"reaper: {BATCH_ROWS:,} rows, then {1000 * PAUSE_SECONDS:.0f} ms"
OTHERS = ((1000, 0.0), (1000, 0.05), (500, 0.05), (250, 0.025), (50, 0.005), (100, 0.0))
"""What else was considered, measured in the full run only."""


class WithReaper(LoopBench):
    """The same claims while a worker's process reaps."""

    def __init__(self, name: str, url: str, batch: int, pause: float) -> None:
        super().__init__(name, partial(ours.async_claims, url, True))
        self._command = [sys.executable, "-m", "benchmarks.apps.reaper", url, str(batch), str(pause)]
        self._went = 0
        self._seconds = 0.0

    def open(self) -> None:
        super().open()
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)
        self._say(0.0)
        self._went += self._heard()  # imported and connected

    def slice(self, callers: int, seconds: float) -> Sample:
        began = time.perf_counter()
        self._say(seconds + 0.1)  # the claimants open their connections first
        found = super().slice(callers, seconds)
        self._went += self._heard()
        self._seconds += time.perf_counter() - began
        return found

    def _say(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def _heard(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
        super().close()

    def remarks(self) -> list[str]:
        return [f"{self.name}: {self._went / self._seconds:,.0f} rows a second beside the claims"]


def reaping(machines: Machines, pace: Pace) -> list[Table]:
    url, table, size = machines.postgres, "reaped", SIZES[pace.label]
    at = f"{url}?table={table}"
    filled(url, table, size, LONG_AGO)
    benches: list[Bench] = [
        LoopBench(QUIET, partial(ours.async_claims, at, True)),
        WithReaper(DEFAULTS, at, BATCH_ROWS, PAUSE_SECONDS),
    ]
    if pace.label == "full":
        tried = [(f"reaper: {batch:,} rows, then {1000 * pause:.0f} ms", batch, pause) for batch, pause in OTHERS]
        benches += [WithReaper(name, at, batch, pause) for name, batch, pause in tried if name != DEFAULTS]
    found = titled(
        "reaping", "PostgreSQL: 99th percentile of a claim beside the reaper, against without", benches, "p99"
    )
    found.targets = [(DEFAULTS, CALLERS, 1.3)]
    compare(found, benches, (CALLERS,), pace)
    found.notes.append(alone(at))
    return [found]


def alone(url: str) -> str:
    """The rest of the million without pauses."""
    store, went, longest, began = open_store(url), 0, 0.0, time.perf_counter()
    while True:
        start = time.perf_counter()
        gone = store.execute(Reap(BATCH_ROWS))
        longest = max(longest, time.perf_counter() - start)
        went += gone
        if not gone:
            break
    seconds = time.perf_counter() - began
    store.close()
    return (
        f"alone and without pauses: {went:,} rows, {BATCH_ROWS:,} at a time, {went / seconds:,.0f} a second; "
        f"the longest batch took {1000 * longest:.0f} ms"
    )
