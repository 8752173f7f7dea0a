"""`python -m benchmarks [parts …] [--quick | --full]`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import benchmarks
from benchmarks import growth, peers, small, stores, web
from benchmarks.harness import Table
from benchmarks.machines import Machines, machines
from benchmarks.report import save
from benchmarks.stores import QUICK, Pace

RESULTS = Path(__file__).resolve().parent / "results"

Part = Callable[[Machines, Pace, bool], list[Table]]

PARTS: dict[str, Part] = {
    "postgres": lambda at, pace, full: stores.postgres(at, pace),
    "sqlite": lambda at, pace, full: stores.sqlite(at, pace),
    "redis": lambda at, pace, full: stores.redis(at, pace),
    "web": lambda at, pace, full: web.web(at, pace),
    "peers": lambda at, pace, full: peers.peers(at, pace),
    "small": lambda at, pace, full: small.small(at, pace),
    "growth": lambda at, pace, full: growth.growth(at, pace, growth.FULL if full else growth.SIZES),
    "reaping": lambda at, pace, full: growth.reaping(at, pace),
}
QUICKLY = ("postgres", "sqlite", "redis", "web", "small")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="part", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute, figures without meaning")
    parser.add_argument("--full", action="store_true", help="ten million records in the growth part")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    given = parser.parse_args()
    pace = QUICK if given.quick else Pace()
    chosen = given.parts or (QUICKLY if given.quick else tuple(PARTS))
    tables: list[Table] = []
    with machines() as at:
        for name in chosen:
            print(name, file=sys.stderr)
            tables += PARTS[name](at, pace, given.full)
        when = datetime.now(UTC)
        about = {
            "when": when.strftime("%Y-%m-%d %H:%M UTC"),
            "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
            "load": list(os.getloadavg()),
            "servers": at.labels,
            "quick": given.quick,
        }
    path = save(given.out, when.strftime("%Y-%m-%d") + ("-quick" if given.quick else ""), about, tables)
    print(f"{path} and the charts beside it", file=sys.stderr)


if __name__ == "__main__":
    main()
