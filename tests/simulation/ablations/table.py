"""Seeds to discovery of each ablation: `python -m tests.simulation.ablations --runs 20 --max 20000 --write`.

Each run searches a range of seeds of its own. What is printed as a table is the median over all runs. An ablation that
a run does not find within `--max` seeds is a survivor, and ends the program with 1. `--only TEXT` takes the ablations
whose name has the text; `--write` writes docs/reference/ablations.md, and needs all of them. `--missing` searches those
that the page has no row for, keeps the other rows, and writes the page: for a change that brings an ablation.

`--notes FILE` keeps what is finished, after each run of each ablation: the same command goes on from there, as long as
the code is the same. `--seconds` stops after a while, with 3 if something is left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from retrysafe.testing.simulation.campaign import prepare_process
from tests.simulation.ablations import ABLATIONS, Ablation, find_seed
from tests.simulation.ablations.base import explain_survivor
from tests.simulation.ablations.reach import AblationError
from tests.simulation.ablations.what_broke import NOT_SIMULATED, PUT_BACK
from tests.simulation.campaigns import read_commit_id

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/ablations.md"
SLICE_SEEDS = 100
SPAN_SEEDS = 1_000_000
COMMIT = re.compile(r"commit `([^`]+)`")
UNFINISHED = 3
"""The exit status when the time was over before everything was searched."""

HEAD = """# Ablations

<!-- Written by `python -m tests.simulation.ablations --runs {runs} --max {limit} --write`. -->

An ablation takes one safeguard out, or puts one old defect back ([what broke](../explanation/what-broke.md)). The
[simulation](../explanation/simulation.md) then has to notice: the rule in the second column must be seen broken. The
number is how many seeds that took, as the median over the runs ({runs}), each with seeds of its own; "at most" is the
slowest run. "Survived" means: not found within {limit} seeds. A survivor fails the build. The figures are of the code
at commit `{commit}`.

A discovery counts only if the patch ran, if nothing crashed, and if the same history without the patch breaks no rule.

"General" are the seeds of our campaigns, with everything that they draw. The others are found in a situation that makes
them frequent: certain kinds of purchases, certain faults, or an application of its own (`tests/simulation/scenarios`).

| ablation | rule that is broken | seeds, median | at most | situation |
|---|---|---|---|---|
"""


class Discovery(NamedTuple):
    """How many seeds each run took; more than `limit`: it was not found."""

    ablation: Ablation
    seeds: list[int]
    limit: int

    @property
    def survived(self) -> bool:
        return max(self.seeds) > self.limit

    def format_row(self) -> str:
        name, rule = self.ablation.name, self.ablation.rule
        where = "general" if self.ablation.situation.is_general else "chosen"
        if self.survived:
            return f"| {name} | {rule} | **survived** | | {where} |"
        return f"| {name} | {rule} | {median(self.seeds):g} | {max(self.seeds)} | {where} |"


class Notes:
    """What is finished: for each ablation the number of seeds of each run. Kept in a file, if there is one."""

    def __init__(self, path: Path | None, limit: int) -> None:
        self._path = path
        self._head = {"code": digest_code(), "max": limit}
        self.found: dict[str, dict[str, int]] = {}
        if path is not None and path.exists():
            known = json.loads(path.read_text())
            if {name: known[name] for name in self._head} == self._head:
                self.found = known["found"]
            else:
                print(f"{path}: of other code, or another --max; it is begun anew", file=sys.stderr)

    @property
    def is_kept(self) -> bool:
        return self._path is not None

    def add(self, name: str, run: int, seeds: int) -> None:
        self.found.setdefault(name, {})[str(run)] = seeds
        if self._path is not None:
            written = self._path.with_suffix(".new")
            written.write_text(json.dumps({**self._head, "found": self.found}, indent=1))
            written.replace(self._path)

    def list_seeds(self, name: str, runs: int) -> list[int]:
        known = self.found.get(name, {})
        return [known[str(run)] for run in range(runs) if str(run) in known]


def digest_code() -> str:
    """The library and the simulation: another one has other histories."""
    digest = hashlib.sha256()
    for folder in ("src/retrysafe", "tests/simulation"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def search(number: int, run: int, limit: int, until: float) -> tuple[int, int, int | None]:
    """How many seeds a run took; `limit` + 1: it was not found; None: the time was over."""
    first = run * SPAN_SEEDS
    for start in range(first, first + limit, SLICE_SEEDS):
        if time.time() > until:
            return number, run, None
        seed = find_seed(ABLATIONS[number], start, min(start + SLICE_SEEDS, first + limit))
        if seed is not None:
            return number, run, seed - first + 1
    return number, run, limit + 1


def search_all(numbers: list[int], runs: int, limit: int, jobs: int, seconds: float, notes: Notes) -> None:
    """Search what is not in the notes. A survivor's further runs are left out: one is too many."""
    began = time.time()
    until = began + seconds
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=prepare_process) as pool:
        for run in range(runs):
            left = [
                number
                for number in numbers
                if str(run) not in notes.found.get(ABLATIONS[number].name, {})
                and max(notes.found.get(ABLATIONS[number].name, {"": 0}).values()) <= limit
            ]
            for done in as_completed([pool.submit(search, number, run, limit, until) for number in left]):
                _note(notes, *done.result())
            if left and notes.is_kept:
                print(f"run {run + 1} of {runs}: {time.time() - began:,.0f} s", file=sys.stderr, flush=True)


def _note(notes: Notes, number: int, run: int, seeds: int | None) -> None:
    if seeds is not None:
        notes.add(ABLATIONS[number].name, run, seeds)


def read_rows(page: str) -> dict[tuple[str, str], str]:
    """The published rows, by name and rule of their ablation."""
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    return {(row.split(" | ")[0].removeprefix("| "), row.split(" | ")[1]): row for row in rows}


def format_page(
    discoveries: list[Discovery], runs: int, limit: int, known: Mapping[tuple[str, str], str], commit: str
) -> str:
    """The page, with the known rows of what was not searched. `commit`: of which code its figures are."""
    rows = {**known, **{(each.ablation.name, each.ablation.rule): each.format_row() for each in discoveries}}
    listed = "\n".join(rows[each.name, each.rule] for each in ABLATIONS)
    return f"{HEAD.format(runs=runs, limit=limit, commit=commit)}{listed}\n\n{format_what_broke()}"


def name_commits(page: str) -> str:
    """The commit of this run; of a page that only gets what it lacks, the commit of its other rows, too."""
    now, before = read_commit_id(), COMMIT.search(page)
    return now if before is None else f"{before[1]}`, rows that were added later at `{now}"


def format_what_broke() -> str:
    lines = [
        "## Lines of what broke",
        "",
        f"{len(PUT_BACK)} lines are put back by the ablations above. The others have their test on a real server,",
        "or a unit test, which each line names. Why the simulation does not meet them:",
        "",
        *(f"- {reason} (lines: {len(names)})" for reason, names in NOT_SIMULATED.items()),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.ablations", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--max", type=int, default=20_000, dest="limit")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--notes", type=Path, help="keep what is finished here, and go on from it")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--missing", action="store_true", help="only what the page has no row for")
    given = parser.parse_args(arguments)
    if (given.write or given.missing) and given.only:
        parser.error(f"--write needs all ablations, and --only {given.only!r} leaves some out; give one of the two")
    known = read_rows(PAGE.read_text("utf-8")) if given.missing else {}
    numbers = [
        number
        for number, each in enumerate(ABLATIONS)
        if given.only in each.name and (each.name, each.rule) not in known
    ]
    notes = Notes(given.notes, given.limit)
    try:
        search_all(numbers, given.runs, given.limit, given.jobs, given.seconds, notes)
    except AblationError as error:
        print(f"an ablation that proves nothing: {error}", file=sys.stderr)
        return 1
    discoveries, left = [], []
    for number in numbers:
        found = Discovery(ABLATIONS[number], notes.list_seeds(ABLATIONS[number].name, given.runs), given.limit)
        if len(found.seeds) == given.runs or (found.seeds and found.survived):
            discoveries.append(found)
            print(found.format_row(), flush=True)
        else:
            left.append(found.ablation.name)
    survivors = [each.ablation for each in discoveries if each.survived]
    for survivor in survivors:
        print(f"survived: {survivor.name}: {explain_survivor(survivor)}", file=sys.stderr)
    if left:
        print(f"{len(left)} of {len(numbers)} are not finished: the same command goes on", file=sys.stderr)
        return UNFINISHED
    if given.write or given.missing:
        commit = name_commits(PAGE.read_text("utf-8") if given.missing else "")
        PAGE.write_text(format_page(discoveries, given.runs, given.limit, known, commit))
    return 1 if survivors or not (numbers or known) else 0
