"""Many histories, one after the other, in one or several processes: what a campaign runs, counts and reports.

`run_seeds` plays some seeds in this process. `run_campaign` gives them to several processes, and goes on where a
campaign was stopped (`--resume FILE`). Memory stays bounded: what a history leaves is collected, and counted if not.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.scenario import Scenario
from retrysafe.testing.simulation.world import World

CHUNK_SEEDS = 200
"""How many histories a process plays before it reports."""
COLLECT_ALL_EVERY = 100
"""Histories between two collections of everything. What the last one left is collected at once, while it is in the
processor's cache: cycles of tasks, hosts and contexts."""


@dataclass(slots=True)
class Tally:
    """What some histories met. Tallies are added."""

    histories: int = 0
    steps: int = 0
    messages: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    circumstances: Counter[str] = field(default_factory=Counter)
    failing: dict[int, str] = field(default_factory=dict)
    """The first problem of each failing seed."""
    max_rss_mib: int = 0

    def add(self, other: Tally) -> None:
        for name in ("histories", "steps", "messages", "virtual_seconds", "cpu_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("kinds", "faults", "circumstances"):
            getattr(self, name).update(getattr(other, name))
        self.failing.update(other.failing)
        self.max_rss_mib = max(self.max_rss_mib, other.max_rss_mib)

    def count(self, seed: int, outcome: Outcome, messages: int, problems: list[str]) -> None:
        self.histories += 1
        self.steps += outcome.steps
        self.messages += messages
        self.virtual_seconds += outcome.seconds
        self.kinds.update(purchase.kind for purchase in outcome.purchases)
        self.faults.update(outcome.faults.values())
        self.faults.update(outcome.host_faults)
        self.circumstances.update(name_circumstances(outcome))
        if problems:
            self.failing[seed] = problems[0]


def name_circumstances(outcome: Outcome) -> Iterator[str]:
    """The kinds of histories that this one belongs to."""
    plan = outcome.plan
    yield f"{plan.hosts} hosts"
    for name, holds in (
        ("two applications", outcome.neighbour is not None),
        ("a deployment", "deployment" in outcome.host_faults),
        ("a double click", plan.senders > 1),
        ("clocks that are wrong", bool(plan.skew or plan.drift)),
        ("a short memory of the provider", plan.provider_memory < 86_400.0),
        ("a lossy store", plan.is_lossy),
        ("no fault at all", not outcome.faults and not outcome.host_faults),
    ):
        if holds:
            yield name


def run_seeds(seeds: range, scenario: Scenario, until: float = inf) -> Tally:
    """Play these seeds here, as many of them as begin before `until` (`time.time`)."""
    tally, began = Tally(), time.process_time()
    for number, seed in enumerate(seeds):
        if time.time() > until:
            break
        world = World(seed, scenario)
        try:
            outcome = world.run()
            problems = check(outcome)
        except Exception as error:  # a simulation that cannot go on is a finding, too
            tally.histories += 1
            tally.failing[seed] = f"{type(error).__name__}: {error}"
            continue
        tally.count(seed, outcome, world.stage.network.sent, problems)
        del world, outcome
        gc.collect(2 if number % COLLECT_ALL_EVERY == 0 else 0)
    tally.cpu_seconds = time.process_time() - began
    tally.max_rss_mib = read_rss_mib()
    return tally


def run_campaign(
    scenario: str, seeds: range, *, jobs: int = 1, resume: Path | None = None, seconds: float | None = None
) -> tuple[Tally, float]:
    """Play seeds of a scenario (`module:name`) in several processes, for `seconds` at most. The tally, and how long it
    took on the wall."""
    total, done = load_state(resume, scenario, seeds)
    chunks = [chunk for chunk in split(seeds, CHUNK_SEEDS) if chunk.start not in done]
    began, until = time.monotonic(), inf if seconds is None else time.time() + seconds
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=prepare_process) as pool:
        tasks = ((scenario, chunk.start, chunk.stop, until) for chunk in chunks)
        for start, tally in pool.imap_unordered(_run_chunk, tasks):
            is_whole = time.time() < until  # else some of its seeds may have been left out: they are played again later
            if is_whole or resume is None:
                total.add(tally)
            if is_whole:
                done.add(start)
            if resume is not None:
                save_state(resume, scenario, seeds, total, done)
            if seconds is not None and time.monotonic() - began > seconds:
                pool.terminate()
                break
    return total, time.monotonic() - began


def prepare_process() -> None:
    """What was imported is never looked at again by the collector, and the collector runs when it is told to. Nothing is
    logged: a finding is told by its history."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.disable()


def _run_chunk(task: tuple[str, int, int, float]) -> tuple[int, Tally]:
    name, first, last, until = task
    return first, run_seeds(range(first, last), load_scenario(name), until)


def load_scenario(name: str) -> Scenario:
    """`module:name`."""
    module, _, attribute = name.partition(":")
    found = getattr(import_module(module), attribute or "SCENARIO", None)
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


# A campaign that goes on later --------------------------------------------------------------------


def load_state(path: Path | None, scenario: str, seeds: range) -> tuple[Tally, set[int]]:
    if path is None or not path.exists():
        return Tally(), set()
    state = json.loads(path.read_text(encoding="utf-8"))
    if state["scenario"] != scenario or state["first"] != seeds.start:
        raise ValueError(
            f"{path} is of a campaign of {state['scenario']} from seed {state['first']}: "
            f"resume it with the same, or give another file"
        )
    tally: dict[str, Any] = state["tally"]
    for name in ("kinds", "faults", "circumstances"):
        tally[name] = Counter(tally[name])
    tally["failing"] = {int(seed): problem for seed, problem in tally["failing"].items()}
    return Tally(**tally), set(state["done"])


def save_state(path: Path, scenario: str, seeds: range, tally: Tally, done: set[int]) -> None:
    counted = {each.name: getattr(tally, each.name) for each in fields(tally)}
    state = {"scenario": scenario, "first": seeds.start, "done": sorted(done), "tally": counted}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state), encoding="utf-8")
    new.replace(path)


# The report ---------------------------------------------------------------------------------------


def format_report(tally: Tally, seconds: float, jobs: int, reproduce: str) -> str:
    """For a person. `reproduce` is a line with `{seed}` in it that plays one history again."""
    lines = [
        f"{tally.histories:,} histories in {seconds:,.0f} s on {jobs} process{'es' if jobs > 1 else ''}, "
        f"{len(tally.failing)} with violations",
        f"{tally.histories / max(tally.cpu_seconds, 1e-9):,.0f} histories per CPU second and core; each has "
        f"{_mean(tally.steps, tally):,.0f} steps, {_mean(tally.messages, tally):,.0f} messages and "
        f"{_mean(tally.virtual_seconds, tally):,.0f} virtual seconds; {tally.max_rss_mib} MiB at most",
        *_format_counts("purchases by kind", tally.kinds),
        *_format_counts("histories with", tally.circumstances),
        *_format_counts("faults met", tally.faults),
    ]
    for seed, problem in sorted(tally.failing.items())[:20]:
        lines += [f"FAILED {problem}", f"    {reproduce.format(seed=seed)}"]
    return "\n".join(lines)


def _mean(value: float, tally: Tally) -> float:
    return value / max(tally.histories, 1)


def _format_counts(title: str, counts: Mapping[str, int]) -> list[str]:
    listed = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    return [f"{title}: {listed}"] if listed else []
