"""Our own campaigns: `python -m tests.simulation --seeds 1000000 --jobs 2 --resume campaign.json`.

The seeds are shared among the scenarios of `SHARES`. `--quick` is what CI runs: the kept seeds, fresh seeds whose first
one comes from the number of commits, and a sample of the ablations, each for a while.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from random import Random

from retrysafe.testing.simulation.campaign import format_progress, load_scenario, run_campaigns, run_seeds
from retrysafe.testing.simulation.tally import Tally, format_report
from tests.simulation.ablations import ABLATIONS, find_seed
from tests.simulation.ablations.reach import AblationError
from tests.simulation.kept import KEPT, SHOP, STRAIGHT

SHARES = {
    SHOP: 14,
    "retrysafe.testing.simulation.ways_shop:SCENARIO": 1,
    "retrysafe.testing.simulation.local_shop:TOGETHER": 1,
    "retrysafe.testing.simulation.local_shop:ELSEWHERE": 1,
    "retrysafe.testing.simulation.queue_shop:SCENARIO": 1,
    "retrysafe.testing.simulation.webhook_shop:SCENARIO": 1,
    STRAIGHT: 1,
}
"""How many of twenty histories each scenario gets."""

QUICK_SEEDS = 4_000
"""How many fresh seeds CI plays: the same ones for the same commit, on any machine."""
QUICK_SECONDS = 100.0
"""The most time for fresh seeds, and as much for ablations: with the kept seeds that stays under four minutes."""
MAX_SEEDS = 20_000
SLICE_SEEDS = 50


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--resume", type=Path, help="keep the state here, and go on from it")
    parser.add_argument("--quick", action="store_true", help="what CI runs")
    given = parser.parse_args(arguments)
    if given.quick:
        return run_quick(given.jobs)
    tallies = run_shares(given.first, given.seeds, given.jobs, given.seconds, given.resume)
    return 1 if any(tally.failing for tally in tallies) else 0


def run_shares(first: int, seeds: int, jobs: int, seconds: float | None, resume: Path | None) -> list[Tally]:
    """One campaign of all scenarios, and a report of each and of all. The tallies of the scenarios."""
    shares = share_seeds(first, seeds)
    commit = read_commit_id()
    done = run_campaigns(shares, jobs=jobs, resume=resume, seconds=seconds, commit=commit, say=say)
    total = Tally()
    for scenario in shares:
        tally, took = done.scenarios[scenario].tally, done.scenarios[scenario].seconds
        print(f"\n{scenario}, from seed {first}\n{format_report(tally, took, jobs, reproduce(scenario))}", flush=True)
        total.add(tally)
    print(f"\nin all, at commit {done.commit}:\n{format_progress(done, shares, jobs)}", flush=True)
    for name, counts in (("faults met", total.faults), ("histories with", total.circumstances)):
        print(f"{name}: {sum(counts.values()):,} in {len(counts)} kinds", flush=True)
    return [done.scenarios[scenario].tally for scenario in shares]


def share_seeds(first: int, seeds: int) -> dict[str, range]:
    """How many seeds each scenario gets, all from the same first one."""
    all_shares = sum(SHARES.values())
    return {scenario: range(first, first + -(-seeds * share // all_shares)) for scenario, share in SHARES.items()}


def say(line: str) -> None:
    print(line, flush=True)


def reproduce(scenario: str) -> str:
    return f"python -m retrysafe.testing.simulation {scenario} --story {{seed}}"


# What CI runs -------------------------------------------------------------------------------------


def run_quick(jobs: int) -> int:
    commit = read_commit()
    failed = run_kept()
    tallies = run_shares(read_first_seed(commit), QUICK_SEEDS, jobs, QUICK_SECONDS, None)
    survivors = run_ablations(commit, jobs)
    return 1 if failed or any(tally.failing for tally in tallies) or survivors else 0


def run_kept() -> int:
    """Play the seeds that once failed."""
    failing = 0
    for kept in KEPT:
        tally = run_seeds(range(kept.seed, kept.seed + 1), load_scenario(kept.scenario))
        for problem in tally.failing.values():
            failing += 1
            print(f"FAILED again: {problem}\n    {reproduce(kept.scenario).format(seed=kept.seed)}")
    print(f"{len(KEPT)} kept seeds, {failing} with violations", flush=True)
    return failing


def run_ablations(commit: str, jobs: int) -> int:
    """Take out safeguards for a while, in an order that the commit draws. How many were not missed within 20,000
    seeds, or prove nothing."""
    order = list(range(len(ABLATIONS)))
    Random(commit).shuffle(order)
    until = time.time() + QUICK_SECONDS
    first = read_first_seed(commit)
    found = survived = 0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for name, seeds in pool.map(_look_for, [(number, first, until) for number in order]):
            if isinstance(seeds, str):
                survived += 1
                print(f"PROVES NOTHING: {seeds}", flush=True)
            elif seeds is not None and seeds > MAX_SEEDS:
                survived += 1
                print(f"SURVIVED: {name}", flush=True)
            elif seeds is not None:
                found += 1
                print(f"  {name}: missed after {seeds} seeds", flush=True)
    print(f"{found} of {len(ABLATIONS)} ablations were tried and found, {survived} survived", flush=True)
    return survived


def _look_for(task: tuple[int, int, float]) -> tuple[str, int | str | None]:
    """How many seeds it took; None: the time was over; a text: why the ablation proves nothing."""
    number, first, until = task
    ablation = ABLATIONS[number]
    for start in range(first, first + MAX_SEEDS, SLICE_SEEDS):
        if time.time() > until:
            return ablation.name, None
        try:
            seed = find_seed(ablation, start, start + SLICE_SEEDS)
        except AblationError as error:
            return ablation.name, str(error)
        if seed is not None:
            return ablation.name, seed - first + 1
    return ablation.name, MAX_SEEDS + 1


def read_commit() -> str:
    """How many commits there are. So each commit has seeds of its own, and they can be played before it is made."""
    done = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def read_commit_id() -> str:
    """The commit that is played, for a person. `progress.py` tells by the code itself whether it is the same."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def read_first_seed(commit: str) -> int:
    return int.from_bytes(blake2b(commit.encode(), digest_size=4).digest(), "little")
