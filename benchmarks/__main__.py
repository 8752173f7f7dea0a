"""`python -m benchmarks [parts …] [--quick | --full] [--name NAME]`, and `--page` to write the docs' page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import benchmarks
from benchmarks import commands, growth, idle, instructions, journal, lists, page, reaping, small, stores, web
from benchmarks.harness import FULL, QUICK, Pace
from benchmarks.machines import Machines, machines
from benchmarks.results import RESULTS, Part, begun, circumstances, merged, newest, save
from benchmarks.tables import Table

PARTS: dict[str, Callable[[Machines, Pace], list[Table]]] = {
    "postgres": stores.postgres,
    "sqlite": stores.sqlite,
    "redis": stores.redis,
    "mysql": stores.mysql,
    "mariadb": stores.mariadb,
    "mongodb": stores.mongodb,
    "dynamodb": stores.dynamodb,
    "web": web.fastapi,
    "asgi": web.asgi,
    "django": web.django,
    "instructions": instructions.instructions,
    "small": small.small,
    "reaping": reaping.reaping,
    "growth": growth.growth,
    "idle": idle.idle,
    "lists": lists.lists,
    "commands": commands.commands,
    "journal": journal.journal,
}
ASKED_FOR = frozenset({"instructions"})
"""Parts that run only if they are named: counting is thirty times slower than running."""
QUICKLY = RESULTS.parent.parent / "build" / "bench"


def main(words: list[str] | None = None) -> None:
    given = parsed(words)
    if given.page:
        found = newest(given.out)
        if found is None:
            sys.exit(f"{given.out} holds no results; run python -m benchmarks first")
        print(page.write(found), file=sys.stderr)
        return
    pace = QUICK if given.quick else FULL if given.full else Pace()
    results = begun(given.out, given.name)
    for name in given.parts or [part for part in PARTS if part not in ASKED_FOR]:
        # Servers of its own for each part: nothing is in the caches, logs and indexes but what it put there.
        with machines() as at:
            load, began = os.getloadavg()[0], time.perf_counter()
            print(f"{name} ({pace.label})", file=sys.stderr, flush=True)
            tables = PARTS[name](at, pace)
            results = merged(results, name, Part(circumstances(pace, at.labels, load), tables))
        # After each part, so that a run which is cut short keeps what it has.
        path = save(given.out, results)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        print(f"written: {path.name}", file=sys.stderr, flush=True)


def parsed(words: list[str] | None) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks", description=benchmarks.__doc__, formatter_class=plain)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="part", help=", ".join(PARTS))
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--quick", action="store_true", help="a smoke run of about a minute, figures without meaning")
    pace.add_argument("--full", action="store_true", help="longer slices, more rounds, ten million records")
    parser.add_argument("--name", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="of the file that is added to")
    parser.add_argument("--out", type=Path, help="the folder of the results")
    parser.add_argument("--page", action="store_true", help="write docs/explanation/speed.md and its charts")
    given = parser.parse_args(words)
    if given.out is None:
        given.out = QUICKLY if given.quick else RESULTS
    return given


if __name__ == "__main__":
    main()
