"""Every command of an operator at a thousand and at a million records: CPU time of the command and the store's server
together, the time on the clock (median and slowest of several runs), the most memory.

What is open is the same in both stores, so the time and memory of a command may not grow with what is finished. The
commands that read every record (`erase`, `keys export`, `stats --count`, a search without a scope) are named so.

RETRYSAFE_BENCH_STORES (names, with commas), RETRYSAFE_BENCH_RECORDS and RETRYSAFE_BENCH_RUNS make a smaller run."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.command_list import Command, list_commands, prepare, submit_runs
from benchmarks.crowded import CROWDED
from benchmarks.harness import Pace
from benchmarks.lists import Cost, cost
from benchmarks.machines import Machines
from benchmarks.noise import family
from benchmarks.tables import Table
from retrysafe.stores.registry import find_backend

STORES = ("SQLite", "PostgreSQL", "MySQL", "MariaDB", "Redis", "MongoDB", "DuckDB", "DynamoDB")
FEW = 1_000
MANY = {"quick": 2_000, "default": 1_000_000, "full": 1_000_000}
RUNS = {"quick": 1, "default": 5, "full": 20}
ENOUGH_SECONDS = 60.0
"""A command that took so long in all is not run again: it is one that reads every record."""
HEADS = ["command", "CPU, few records", "CPU, many", "on the clock, few", "on the clock, many", "memory, few", "many"]


def commands(machines: Machines, pace: Pace) -> list[Table]:
    found = []
    chosen = os.environ.get("RETRYSAFE_BENCH_STORES")
    for store in chosen.split(",") if chosen else STORES[:1] if pace.label == "quick" else STORES:
        many = int(os.environ.get("RETRYSAFE_BENCH_RECORDS", MANY[pace.label]))
        runs = int(os.environ.get("RETRYSAFE_BENCH_RUNS", RUNS[pace.label]))
        began = time.perf_counter()
        small, large = (prepare(CROWDED[store](machines, size), runs) for size in (FEW, many))
        print(f"{store}: filled in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        declared = find_backend(small).capabilities
        table = Table(f"commands-{store.lower()}", f"{store}: each command at {FEW:,} and at {many:,}", "", "time")
        table.heads = HEADS
        for command in list_commands():
            if command.words[0] == "outbox" and not declared.outbox:
                continue
            few, most = (measure(url, command, runs, lambda: spent_by(machines)) for url in (small, large))
            reads_all = command.reads_every_record(lists_by_id=declared.lists_by_id)
            name = f"`{command.name}`{' (reads every record)' if reads_all else ''}"
            pairs = zip(few.cells(), most.cells(), strict=True)
            table.cells.append([name, *(cell for pair in pairs for cell in pair)])
            print(" | ".join(table.cells[-1]), file=sys.stderr, flush=True)
        found.append(table)
    return found


def spent_by(machines: Machines) -> float:
    """CPU seconds of the servers of this run. A store in a file has none."""
    return sum(family(server.process.pid) for server in machines.servers.values() if server.process is not None)


class Found(NamedTuple):
    """What several runs of a command cost."""

    costs: list[Cost]
    servers: float
    """CPU seconds of the servers meanwhile, for one run."""

    def cells(self) -> tuple[str, str, str]:
        seconds = sorted(each.seconds for each in self.costs)
        processor = statistics.median(each.processor for each in self.costs) + self.servers
        clock = f"{statistics.median(seconds):.2f} s (slowest {seconds[-1]:.2f})"
        return f"{processor:.2f} s", clock, f"{max(each.megabytes for each in self.costs):.0f} MB"


def measure(url: str, command: Command, runs: int, spent: Callable[[], float]) -> Found:
    """The median and the slowest of several runs, and the most memory."""
    before, costs = spent(), list[Cost]()
    while len(costs) < runs and sum(each.seconds for each in costs) < ENOUGH_SECONDS:
        if command.submits:
            submit_runs(url, [f"late-{len(costs)}"])
        costs.append(cost(url, command.build_words(url, len(costs))))
    return Found(costs, (spent() - before) / len(costs))
