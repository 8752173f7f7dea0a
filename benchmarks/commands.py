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

from benchmarks.crowded import CROWDED
from benchmarks.harness import Pace
from benchmarks.lists import Cost, cost
from benchmarks.machines import Machines
from benchmarks.noise import family
from benchmarks.tables import Table
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.registry import find_backend, open_store
from retrysafe.testing.builders import claim, complete

STORES = ("SQLite", "PostgreSQL", "MySQL", "MariaDB", "Redis", "MongoDB", "DuckDB", "DynamoDB")
FEW = 1_000
MANY = {"quick": 2_000, "default": 1_000_000, "full": 1_000_000}
RUNS = {"quick": 1, "default": 5, "full": 20}
ENOUGH_SECONDS = 60.0
"""A command that took so long in all is not run again: it is one that reads every record."""
OPEN, DEAD, TENANT = 100, 50, "tenant-7"
BECAUSE = ("--because", "a measurement")
APP = "benchmarks.apps.listed:safe"
HEADS = ["command", "CPU, few records", "CPU, many", "on the clock, few", "on the clock, many", "memory, few", "many"]


class Command(NamedTuple):
    name: str
    words: tuple[str, ...]
    reads_all: bool = False
    by_id: bool = False
    """It reads every record where lists do not go by id."""


def commands(machines: Machines, pace: Pace) -> list[Table]:
    found = []
    chosen = os.environ.get("RETRYSAFE_BENCH_STORES")
    for store in chosen.split(",") if chosen else STORES[:1] if pace.label == "quick" else STORES:
        many = int(os.environ.get("RETRYSAFE_BENCH_RECORDS", MANY[pace.label]))
        runs = int(os.environ.get("RETRYSAFE_BENCH_RUNS", RUNS[pace.label]))
        began = time.perf_counter()
        small, large = (prepare(CROWDED[store](machines, size)) for size in (FEW, many))
        print(f"{store}: filled in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        declared = find_backend(small).capabilities
        table = Table(f"commands-{store.lower()}", f"{store}: each command at {FEW:,} and at {many:,}", "", "time")
        table.heads = HEADS
        for command in list_commands():
            if command.words[0] == "outbox" and not declared.outbox:
                continue
            few, most = (measure(url, command, runs, lambda: spent_by(machines)) for url in (small, large))
            reads_all = command.reads_all or (command.by_id and not declared.lists_by_id)
            name = f"`{command.name}`{' (reads every record)' if reads_all else ''}"
            pairs = zip(few.cells(), most.cells(), strict=True)
            table.cells.append([name, *(cell for pair in pairs for cell in pair)])
            print(" | ".join(table.cells[-1]), file=sys.stderr, flush=True)
        found.append(table)
    return found


def spent_by(machines: Machines) -> float:
    """CPU seconds of the servers of this run. A store in a file has none."""
    return sum(family(server.process.pid) for server in machines.servers.values() if server.process is not None)


def list_commands() -> list[Command]:
    digits = claim("open-1", scope=TENANT).id.hex()[:16]
    one = ("open-1", "--scope", TENANT)
    return [
        Command("--help", ("--help",)),
        Command("stats", ("stats",)),
        Command("top --times 1", ("top", "--times", "1")),
        Command("tail --times 1", ("tail", "--times", "1")),
        Command("keys list --state uncertain", ("keys", "list", "--state", "uncertain")),
        Command("keys list --lapsed", ("keys", "list", "--lapsed")),
        Command("keys list", ("keys", "list")),
        Command("keys why KEY --scope", ("keys", "why", *one)),
        Command("keys show by 16 digits", ("keys", "show", digits), by_id=True),
        Command("keys show KEY", ("keys", "show", "no-such-key"), reads_all=True),
        Command("keys resolve KEY --scope", ("keys", "resolve", *one, "--did-not-happen", *BECAUSE)),
        Command("keys resolve --all (dry run)", ("keys", "resolve", "--all", "--did-not-happen", *BECAUSE)),
        Command("keys release KEY --scope", ("keys", "release", *one, *BECAUSE)),
        Command("keys forget KEY --scope", ("keys", "forget", "done-1", "--scope", TENANT, *BECAUSE)),
        Command("dead-letters", ("dead-letters",)),
        Command("outbox list --dead", ("outbox", "list", "--dead")),
        Command("outbox retry ID", ("outbox", "retry", f"{1:032x}", *BECAUSE)),
        Command("outbox drop ID", ("outbox", "drop", f"{2:032x}", *BECAUSE)),
        Command("outbox retry --all (dry run)", ("outbox", "retry", "--all", *BECAUSE)),
        Command("outbox assign (dry run)", ("outbox", "assign", "--namespace", "default", *BECAUSE)),
        Command("operations list", ("operations", "list", "--app", APP), reads_all=True),
        *(
            Command(
                f"operations {verb} by 16 digits",
                ("operations", verb, digits, "--id", "--app", APP, *BECAUSE),
                by_id=True,
            )
            for verb in ("resume", "undo", "cancel")
        ),
        Command("operations show RUN", ("operations", "show", "no-such-run", "--app", APP), reads_all=True),
        Command("worker --once", ("worker", "--once", "--app", APP)),
        Command("audit", ("audit",), by_id=True),
        Command("reap (dry run)", ("reap",)),
        Command("reap --yes", ("reap", "--yes", *BECAUSE)),
        Command("trigger crash", ("trigger", "crash", *BECAUSE)),
        Command("doctor", ("doctor",)),
        Command("migrate", ("migrate",)),
        Command("config", ("config",)),
        Command("erase --scope (dry run)", ("erase", "--scope", TENANT, *BECAUSE), reads_all=True),
        Command("erase --scope --yes", ("erase", "--scope", TENANT, "--yes", *BECAUSE), reads_all=True),
        Command("keys export --scope", ("keys", "export", "--scope", TENANT), reads_all=True),
        Command("stats --count", ("stats", "--count"), reads_all=True),
    ]


def prepare(url: str) -> str:
    """Put the same open work into the store."""
    store, token = open_store(url), b"t" * 16
    for number in range(OPEN):
        store.execute(claim(f"open-{number}", scope=TENANT, lease=0, now=None))
        store.execute(claim(f"alive-{number}", lease=3600, now=None))
        assert store.execute(complete(store.execute(claim(f"done-{number}", scope=TENANT, now=None)), now=None))
    if not store.capabilities.outbox:
        store.close()
        return url
    jobs = tuple(Job(f"{number:032x}", "receipts", b"{}") for number in range(2 * DEAD))
    store.execute(Stage(jobs, None, "default"))
    store.execute(TakeJobs(DEAD, token, SECOND_MICROS, None, "default"))
    for job in jobs[:DEAD]:
        store.execute(FailJob(job.id, token, "no", 0, True))
    store.close()
    return url


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
    """The median and the slowest of several runs, and the most memory. A second decision about a key is a refusal,
    which costs the same looks."""
    words = list(command.words)
    if not {"--help", "--app"} & set(words):
        words += ["--url", url]
    before, costs = spent(), list[Cost]()
    while len(costs) < runs and sum(each.seconds for each in costs) < ENOUGH_SECONDS:
        costs.append(cost(url, words))
    return Found(costs, (spent() - before) / len(costs))
