"""Many histories, one after the other, in one or several processes.

`run_seeds` plays some seeds in this process. `run_campaigns` gives the seeds of several scenarios to several processes,
and goes on where it was stopped (`--resume FILE`, progress.py). Memory stays bounded: what a history leaves is
collected, and a process that has played many of them is replaced by a new one.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import NamedTuple

from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.importing import import_named
from retrysafe.testing.simulation.progress import Progress, ScenarioProgress, open_progress
from retrysafe.testing.simulation.scenario import Scenario
from retrysafe.testing.simulation.tally import Tally, format_report
from retrysafe.testing.simulation.world import World

__all__ = ["Tally", "format_report", "load_scenario", "run_campaign", "run_campaigns", "run_seeds"]

CHUNK_SEEDS = 100
"""How many histories a process plays before it reports. A campaign that is stopped loses no more of them."""
PROCESS_CHUNKS = 100
"""How many chunks a process plays before another takes its place."""
COLLECT_ALL_EVERY = 100
"""Histories between two collections of everything. What the last one left is collected at once, while it is in the
processor's cache: cycles of tasks, hosts and contexts."""
SAY_EVERY_SECONDS = 30.0


class Chunk(NamedTuple):
    """Seeds that one process plays, one after the other, as many of them as begin before `until` (`time.time`)."""

    scenario: str
    first: int
    last: int
    until: float = inf


def run_seeds(seeds: range, scenario: Scenario, until: float = inf) -> Tally:
    """Play these seeds here, as many of them as begin before `until` (`time.time`)."""
    tally, began = Tally(), time.process_time()
    for number, seed in enumerate(seeds):
        if time.time() > until:
            break
        _play_seed(seed, scenario, tally)
        gc.collect(2 if number % COLLECT_ALL_EVERY == 0 else 0)
    tally.cpu_seconds = time.process_time() - began
    tally.max_rss_mib = read_rss_mib()
    return tally


def _play_seed(seed: int, scenario: Scenario, tally: Tally) -> None:
    try:
        world = World(seed, scenario)
        outcome = world.run()
        problems = check(outcome)
    except Exception as error:  # a simulation that cannot go on is a finding, too
        tally.histories += 1
        tally.failing[seed] = f"{type(error).__name__}: {error}"
    else:
        tally.count(seed, outcome, world.stage.network.sent, problems)


def run_campaign(
    scenario: str,
    seeds: range,
    *,
    jobs: int = 1,
    resume: Path | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Tally, float]:
    """Play seeds of a scenario (`module:name`) in several processes, for `seconds` at most. The tally, and how long it
    took on the wall, earlier pieces included."""
    done = run_campaigns({scenario: seeds}, jobs=jobs, resume=resume, seconds=seconds, say=say)
    return done.scenarios[scenario].tally, done.scenarios[scenario].seconds


def run_campaigns(
    seeds: Mapping[str, range],
    *,
    jobs: int = 1,
    resume: Path | None = None,
    seconds: float | None = None,
    commit: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Progress:
    """Play seeds of several scenarios in several processes, for `seconds` at most: all scenarios go on side by side, so
    that a piece of a campaign is a sample of the whole. `say` is told now and then how far it is."""
    progress = open_progress(resume, seeds, commit)
    until = inf if seconds is None else time.time() + seconds
    chunks = list_chunks(seeds, progress, until)
    began = said = saved = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(
        jobs, initializer=prepare_process, maxtasksperchild=PROCESS_CHUNKS
    ) as pool:
        for chunk, tally in pool.imap_unordered(play_chunk, chunks):
            is_whole = time.time() < until  # else some of its seeds may have been left out: they are played again later
            played, now = progress.scenarios[chunk.scenario], time.monotonic()
            if is_whole or resume is None:
                played.tally.add(tally)
            if is_whole:
                played.done.add(chunk.first)
            played.seconds += now - saved  # to the one whose chunk has just ended: in the end each has its share
            saved = now
            if resume is not None:
                progress.save(resume)
            if now - said > SAY_EVERY_SECONDS:
                said = now
                say(format_progress(progress, seeds, jobs))
            if seconds is not None and now - began > seconds:
                pool.terminate()
                break
    return progress


def list_chunks(seeds: Mapping[str, range], progress: Progress, until: float = inf) -> list[Chunk]:
    """What is left to play. Scenarios take turns by their share, so each is as far as the others at any time."""
    placed = []
    for name, each in seeds.items():
        for part in split(each, CHUNK_SEEDS):
            if part.start not in progress.scenarios[name].done:
                placed.append(((part.start - each.start) / len(each), Chunk(name, part.start, part.stop, until)))
    return [chunk for _, chunk in sorted(placed)]


def format_progress(progress: Progress, seeds: Mapping[str, range], jobs: int) -> str:
    """One line: how far, what was found, how fast, and how long it may still take."""
    played: list[ScenarioProgress] = [progress.scenarios[name] for name in seeds]
    done, wanted = sum(each.tally.histories for each in played), sum(map(len, seeds.values()))
    took, cpu = sum(each.seconds for each in played), sum(each.tally.cpu_seconds for each in played)
    left = took / max(done, 1) * max(wanted - done, 0)
    return (
        f"{done:,} of {wanted:,} histories, {sum(len(each.tally.failing) for each in played)} with violations; "
        f"{done / max(cpu, 1e-9):,.0f} per CPU second and core, {done / max(took, 1e-9):,.0f} per second on {jobs}; "
        f"{max(each.tally.max_rss_mib for each in played)} MiB at most; about {left / 3600:,.1f} h left"
    )


def prepare_process() -> None:
    """What was imported is never looked at again by the collector, and the collector runs when it is told to. Nothing
    is logged: a finding is told by its history."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.disable()


_played: set[str] = set()
"""The scenarios that this process has played."""


def play_chunk(chunk: Chunk) -> tuple[Chunk, Tally]:
    tally = run_seeds(range(chunk.first, chunk.last), load_scenario(chunk.scenario), chunk.until)
    if chunk.scenario not in _played:  # what it imported stays
        _played.add(chunk.scenario)
        gc.collect()
        gc.freeze()
    return chunk, tally


def load_scenario(name: str) -> Scenario:
    """`module:name`."""
    found = import_named(name, "SCENARIO")
    if not isinstance(found, Scenario):
        raise TypeError(f"{name!r} is no Scenario: give one as module:name, as in tests.shop:SCENARIO")
    return found


def split(seeds: range, size: int) -> list[range]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def read_rss_mib() -> int:
    """The memory of this process now; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20
