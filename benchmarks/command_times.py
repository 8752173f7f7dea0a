"""Every command of an operator a hundred times at a thousand and at a million records: time on the clock and CPU time
(median and p99) and the most memory, `python -m benchmarks.command_times [STORE ...] [--records N] [--runs N]`.

benchmarks/commands.py starts each command as a process, as an operator does, and can afford a few runs. Here one
process for each store and size calls the command line's `main` again and again. Each call opens the store, imports the
application again and closes both, as a command does; only Python and the library are loaded once. The two sizes take
turns, a few runs each, so that other programs slow both down alike.

What is open is the same in both stores, so nothing of a command may grow with what is finished. Commands that read
every record by design are run a few times and marked. A command that changes something has a target of its own for
each run (command_list.py)."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command_list import URL_SETTING, list_commands
from benchmarks.command_runs import Run
from benchmarks.commands import FEW, STORES, spent_by
from benchmarks.crowded import CROWDED
from benchmarks.machines import Machines, machines
from retrysafe.stores.registry import find_backend

ROOT = Path(__file__).resolve().parent.parent
MANY, RUNS = 1_000_000, 100
READING_RUNS = 3
"""Runs of a command that reads every record."""
TURN_RUNS = 5
"""Runs of one size before it is the other one's turn."""
LOOSE = 1.5
"""A command whose median or p99 grows by more than this factor is named at the end."""


class Taken(NamedTuple):
    """All runs of a command at one size."""

    runs: list[Run]
    servers: float
    """CPU seconds of the store's server for one run."""

    def summarize(self) -> dict[str, float]:
        clock, processor = ([each[place] for each in self.runs] for place in (0, 1))
        return {
            "runs": len(self.runs),
            "p50_ms": 1e3 * statistics.median(clock),
            "p99_ms": 1e3 * find_p99(clock),
            "cpu_p50_ms": 1e3 * statistics.median(processor),
            "cpu_p99_ms": 1e3 * find_p99(processor),
            "server_cpu_ms": 1e3 * self.servers,
            "megabytes": max(each.kilobytes for each in self.runs) / 1024,
        }


def find_p99(values: Sequence[float]) -> float:
    """The least value that 99 of a hundred do not exceed."""
    ranked = sorted(values)
    return ranked[-(-99 * len(ranked) // 100) - 1]


# One process for each store and size ----------------------------------------------------------------


class Part:
    """A process that runs commands on one store."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.command_runs", "serve", url]
        self._process: Any = stack.enter_context(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, URL_SETTING: url},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._close)

    def _close(self) -> None:
        """Let it end: it runs what each line asks for."""
        self._process.stdin.close()

    def run(self, number: int, first: int, runs: int) -> list[Run]:
        """Runs of one command, by its number in the list."""
        self._process.stdin.write(json.dumps([number, first, runs]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that runs the commands has failed, see above")
        return [Run(*each) for each in json.loads(line)]


# One store ----------------------------------------------------------------------------------------


def measure_store(at: Machines, store: str, many: int, runs: int) -> dict[str, Any]:
    began = time.perf_counter()
    urls = {"few": CROWDED[store](at, FEW), "many": CROWDED[store](at, many)}
    filled = time.perf_counter() - began
    for url in urls.values():
        words = [sys.executable, "-m", "benchmarks.command_runs", "prepare", url, str(runs)]
        subprocess.run(words, cwd=ROOT, check=True)
    say(f"{store}: filled in {filled:.0f} s, open work put in, {time.perf_counter() - began:.0f} s in all")
    declared = find_backend(urls["few"]).capabilities
    rows = []
    with ExitStack() as stack:
        parts = {size: Part(stack, url) for size, url in urls.items()}
        for number, command in enumerate(list_commands()):
            if command.words[0] == "outbox" and not declared.outbox:
                continue
            reads = command.reads_every_record(lists_by_id=declared.lists_by_id)
            taken = measure_command(at, parts, number, min(runs, READING_RUNS) if reads else runs)
            row = {"command": command.name, "reads_every_record": reads}
            rows.append(row | {size: each.summarize() for size, each in taken.items()})
            say(describe(rows[-1]))
    return {"store": store, "few": FEW, "many": many, "load": os.getloadavg()[1], "rows": rows,
            "seconds": time.perf_counter() - began}  # fmt: skip


def measure_command(at: Machines, parts: dict[str, Part], number: int, runs: int) -> dict[str, Taken]:
    """Runs of one command on both sizes, in turns."""
    found: dict[str, list[Run]] = {size: [] for size in parts}
    servers = dict.fromkeys(parts, 0.0)
    for turn, first in enumerate(range(0, runs, TURN_RUNS)):
        for size in list(parts) if turn % 2 == 0 else list(parts)[::-1]:
            before = spent_by(at)
            found[size] += parts[size].run(number, first, min(TURN_RUNS, runs - first))
            servers[size] += spent_by(at) - before
    return {size: Taken(taken, servers[size] / runs) for size, taken in found.items()}


def describe(row: dict[str, Any]) -> str:
    few, many = row["few"], row["many"]
    marked = f", reads every record, {many['runs']} runs" if row["reads_every_record"] else ""
    pairs = (
        ("clock p50", "p50_ms"), ("p99", "p99_ms"), ("CPU p50", "cpu_p50_ms"), ("p99", "cpu_p99_ms"),
        ("server", "server_cpu_ms"), ("MB", "megabytes"),
    )  # fmt: skip
    told = ", ".join(f"{name} {few[key]:.1f} -> {many[key]:.1f}" for name, key in pairs)
    return f"  {row['command']}{marked}: {told}"


def list_grown(found: dict[str, Any]) -> list[str]:
    """Commands by an index that took more of a processor, command and server together, or of memory, on many."""
    grown = []
    for row in found["rows"]:
        few, many = row["few"], row["many"]
        spent = [each["cpu_p50_ms"] + each["server_cpu_ms"] for each in (few, many)]
        if not row["reads_every_record"] and (
            spent[1] > LOOSE * spent[0] + 2 or many["megabytes"] > few["megabytes"] + 10
        ):
            grown.append(describe(row))
    return grown


# The page -----------------------------------------------------------------------------------------

INDEX_HEADS = ("store", "commands", "CPU, median", "most growth", "CPU, p99", "clock, p99", "p99 grew by", "memory")
READING = {
    "keys show KEY": "`keys show KEY`",
    "operations list --state completed": "`operations list`",
    "audit": "`audit`",
    "erase --scope --yes": "`erase --yes`",
    "keys export --scope": "`keys export`",
    "stats --count": "`stats --count`",
}
"""Commands that read records, as the page names them."""


def write_tables(found: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of docs/explanation/campaigns.md. CPU time is that of the command; in the median that of the store's server
    is with it."""
    lines = format_table(INDEX_HEADS, [summarize_index(each) for each in found])
    return [*lines, "", *format_table(("store", *READING.values()), [list_reading(each) for each in found])]


def summarize_index(found: dict[str, Any]) -> list[str]:
    """The cheapest and the dearest command of a store, on few and on many records, in milliseconds."""
    rows = [row for row in found["rows"] if not row["reads_every_record"]]
    growth, p99 = ([compare(row, key) for row in rows] for key in ("spent", "p99_ms"))
    return [
        found["store"],
        str(len(rows)),
        format_range(rows, "spent"),
        f"{max(growth):.2f}",
        format_range(rows, "cpu_p99_ms"),
        format_range(rows, "p99_ms"),
        f"{statistics.median(p99):.2f}",
        " → ".join(f"{max(row[size]['megabytes'] for row in rows):.0f}" for size in ("few", "many")) + " MB",
    ]


def format_range(rows: Sequence[dict[str, Any]], key: str) -> str:
    values = [[read_cell(row[size], key) for row in rows] for size in ("few", "many")]
    return " → ".join(f"{min(each):,.0f} to {max(each):,.0f}" for each in values)


def compare(row: dict[str, Any], key: str) -> float:
    """How many times as much a command takes on many records. A millisecond more or less is no growth."""
    return (read_cell(row["many"], key) + 1) / (read_cell(row["few"], key) + 1)


def list_reading(found: dict[str, Any]) -> list[str]:
    """The commands that read records: CPU seconds with those of the server, on few and on many."""
    rows = {row["command"]: row for row in found["rows"]}
    return [found["store"], *(format_seconds(rows[name]) for name in READING)]


def format_seconds(row: dict[str, Any]) -> str:
    return " → ".join(f"{read_cell(row[size], 'spent') / 1e3:.2f}" for size in ("few", "many"))


def read_cell(taken: dict[str, float], key: str) -> float:
    return taken["cpu_p50_ms"] + taken["server_cpu_ms"] if key == "spent" else taken[key]


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.command_times", description=__doc__)
    parser.add_argument("stores", nargs="*", help=f"which: {' '.join(STORES)} (all)")
    parser.add_argument("--records", type=int, default=MANY, help=f"in the large store ({MANY:,})")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each command that goes by an index ({RUNS})")
    parser.add_argument("--json", type=Path, help="a file that gets a line for each store")
    parser.add_argument("--tables", type=Path, help="only print the tables of the docs from such a file")
    given = parser.parse_args()
    if given.tables:
        return print(*write_tables([json.loads(line) for line in given.tables.read_text().splitlines()]), sep="\n")
    if given.records <= FEW:
        parser.error(f"--records {given.records}: give more than the {FEW:,} of the small store")
    for store in given.stores or STORES:
        with machines() as at:
            found = measure_store(at, store, given.records, given.runs)
        say(f"{store}: {found['seconds']:.0f} s; grown: " + ("\n".join(list_grown(found)) or "nothing"))
        if given.json:
            with given.json.open("a") as file:
                print(json.dumps(found), file=file)
    return None


if __name__ == "__main__":
    main()
