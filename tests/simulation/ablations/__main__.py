"""Seeds to discovery of each ablation: `python -m tests.simulation.ablations --runs 20 --max 20000`.

Each run searches a range of seeds of its own. What is printed as a table is the median over all runs. An ablation that
a run does not find within `--max` seeds is a survivor, and ends the program with 1. `--only TEXT` takes the ablations
whose name has the text; `--write` writes docs/reference/ablations.md, and needs all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.simulation.ablations import ABLATIONS, Ablation, find_seed
from tests.simulation.ablations.what_broke import NOT_SIMULATED, PUT_BACK

PAGE = Path(__file__).parents[3] / "docs/reference/ablations.md"

HEAD = """# Ablations

<!-- Written by `python -m tests.simulation.ablations --runs {runs} --max {limit} --write`. -->

An ablation takes one safeguard out, or puts one old defect back ([what broke](../explanation/what-broke.md)). The
[simulation](../explanation/simulation.md) then has to notice: the rule in the second column must be seen broken. The
number is how many seeds that took, as the median of {runs} runs, each with seeds of its own; "at most" is the slowest
run. "Survived" means: not found within {limit} seeds.

"General" are the seeds of our campaigns, with everything that they draw. The others are found in a situation that makes
them frequent: certain kinds of purchases, certain faults, or an application of its own (`tests/simulation/scenarios`).
The same situation without the ablation breaks no rule.

| ablation | rule that is broken | seeds, median | at most | situation |
|---|---|---|---|---|
"""


class Discovery(NamedTuple):
    """How many seeds each run took. None: it was not found."""

    ablation: Ablation
    seeds: list[int | None]
    cpu_seconds: float

    @property
    def survived(self) -> bool:
        return None in self.seeds

    def format_row(self) -> str:
        name, rule = self.ablation.name, self.ablation.rule
        where = "general" if self.ablation.situation.is_general else "chosen"
        if self.survived:
            return f"| {name} | {rule} | **survived** | | {where} |"
        found = [seeds for seeds in self.seeds if seeds is not None]
        return f"| {name} | {rule} | {median(found):g} | {max(found)} | {where} |"


def measure(ablation: Ablation, runs: int, limit: int) -> Discovery:
    """Search in `runs` ranges of seeds. The first survivor ends it: one is too many."""
    began, seeds = time.process_time(), []
    for number in range(runs):
        first = number * 1_000_000
        found = find_seed(ablation, first, first + limit)
        seeds.append(None if found is None else found - first + 1)
        if found is None:
            break
    return Discovery(ablation, seeds, time.process_time() - began)


def format_page(discoveries: list[Discovery], runs: int, limit: int) -> str:
    rows = "\n".join(each.format_row() for each in discoveries)
    lines = [HEAD.format(runs=runs, limit=limit) + rows, "", "## Lines of what broke", ""]
    lines.append(
        f"{len(PUT_BACK)} lines are put back by the ablations above. The others have their test on a real server,"
    )
    lines.append("or a unit test, which each line names. Why the simulation does not meet them:")
    lines.append("")
    lines += [f"- {reason} ({len(names)} lines)" for reason, names in NOT_SIMULATED.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.ablations", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--max", type=int, default=20_000, dest="limit")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    chosen = [ablation for ablation in ABLATIONS if given.only in ablation.name]
    if given.write and given.only:
        parser.error(f"--write needs all ablations, and --only {given.only!r} leaves some out; give one of the two")
    discoveries = []
    for ablation in chosen:
        discoveries.append(measure(ablation, given.runs, given.limit))
        print(f"{discoveries[-1].format_row()} {discoveries[-1].cpu_seconds:.1f} s", flush=True)
    if given.write:
        PAGE.write_text(format_page(discoveries, given.runs, given.limit))
    survivors = [each.ablation.name for each in discoveries if each.survived]
    if survivors:
        print(f"survived: {', '.join(survivors)}", file=sys.stderr)
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
