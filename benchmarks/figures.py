"""What the figures cost a request: `python -m benchmarks.figures [--store memory] [--no-processor] [CASE ...]`.

Calls the applications of the web part in process, without sockets, on an SQLite file (`--store memory` counts the
instructions without one). `asgi` has no framework, so every instruction of ours weighs most; `fastapi` is the README's
way. Two states: `on`, the library as it is; `off`, a copy of it from whose source all that counts and measures was
taken out (without_figures.py, which writes both copies anew so that they differ in nothing else).

Two measures. Instructions are counted by valgrind, in a process of its own for each case (callgrind.py), and in
several layouts: CPython finds the methods of hot classes in a cache in which two of them may share a place, by their
addresses and version numbers, and then each request looks both up anew. A change of any line moves that: by up to 500
instructions of a request, as much as a fifth of what figures cost. So each layout has other version numbers, and shown
are the mean and the standard deviation.
Processor time of the process is taken in rounds that go there and back (paired.py): the difference of on from off, and
beside it the control, a second process of off. Two processes of the same code differ by where their memory lies, by up
to 6 %, so all of them are started anew several times: shown are the median and the quartiles of the starts.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from benchmarks.apps import asgi_app
from benchmarks.callgrind import count_twice, measure
from benchmarks.in_process import call
from benchmarks.paired import Difference, compare_starts, run_rounds
from benchmarks.without_figures import copy_library, take_figures_out, write_anew
from retrysafe.engine.figures import MAX_UNSORTED_TIMES

CASES = (("asgi", "new"), ("asgi", "replay"), ("fastapi", "new"), ("fastapi", "replay"))
PIECES = MAX_UNSORTED_TIMES
"""Figures sort what they collected after so many answers of the store. Each count has whole rounds of it, so a request
bears its share: with a hundred requests one count had a sorting and the other had none, and the difference took one
sorting for a hundred requests."""
WARM_UP = PIECES + 44
"""The first sorting is behind, with what it does only once, and the next ones fall into the middle of a count."""


def build_app(kind: str, url: str) -> Any:
    if kind == "asgi":
        return asgi_app.protected(url)
    from benchmarks.apps.fastapi_app import ours_model

    return ours_model(url)


def shift_layout(layout: int) -> None:
    """Give the classes that are used from now on other version numbers."""
    for _ in range(37 * layout):
        hasattr(type("Passing", (), {}), "anything")


async def drive(app: Any, which: str, calls: int, numbers: Any) -> float:
    """Seconds of processor for so many requests."""
    began = time.process_time()
    for _ in range(calls):
        status = await call(app, "replayed" if which == "replay" else f"key-{next(numbers)}")
        assert status == 201, f"answered {status}"
    return time.process_time() - began


def run_child(kind: str, which: str, store: str, layout: int) -> None:
    """What valgrind watches. Without the garbage collector: when it runs is chance, one run of it is thousands of
    instructions for each of a hundred requests, and figures leave nothing for it to collect."""
    gc.disable()
    shift_layout(layout)
    with tempfile.TemporaryDirectory() as folder:
        app = build_app(kind, "memory://" if store == "memory" else f"sqlite:///{folder}/figures.db")

        async def all_of_it() -> None:
            await drive(app, which, WARM_UP, numbers := count())
            await measure(lambda calls: drive(app, which, calls, numbers), PIECES)

        asyncio.run(all_of_it())


def count_instructions(
    kind: str, which: str, sources: dict[str, Path], store: str, times: int, layout: int = 0
) -> dict[str, float]:
    """Instructions of one request in each state, from the least of several counts of each part. A count of a part is
    never too low, and too high where threads and the event loop had to wait for each other: by half a per cent and more
    beside other work. The difference of two counts would be too low where the first of them was too high."""
    found = {}
    for state, source in sources.items():
        command = ["--child", kind, which, store, str(layout)]
        counts = [count_twice("benchmarks.figures", command, prefer_source(source)) for _ in range(times)]
        found[state] = (min(few for few, _, _ in counts) + min(many for _, many, _ in counts)) / (3 * PIECES)
    return found


def prefer_source(source: Path) -> dict[str, str]:
    """The environment of a process that imports the library from there."""
    return {**os.environ, "PYTHONPATH": str(source)}


class ProcessorTime(NamedTuple):
    """Of one request. `least` is in microseconds: nothing makes a slice quicker than it is."""

    least: dict[str, float]
    cost: Difference
    control: Difference

    def __str__(self) -> str:
        return (
            f"figures {self.cost}, control {self.control}; least {self.least['on']:.1f} us with figures, "
            f"{self.least['off']:.1f} us without, {self.least['control']:.1f} us control"
        )


def measure_processor(
    kind: str, which: str, sources: dict[str, Path], calls: int, rounds: int, starts: int
) -> ProcessorTime:
    """Figures against no figures, and no figures against the same."""
    sources = {**sources, "control": sources["off"]}
    slices: dict[str, list[float]] = {state: [] for state in sources}
    found: list[list[dict[str, float]]] = []
    for start in range(starts):
        with ExitStack() as stack:
            parts = {state: start_server(stack, kind, which, source, start) for state, source in sources.items()}

            def measure(state: str, parts: dict[str, subprocess.Popen[str]] = parts) -> float:
                slices[state].append(ask(parts[state], calls) / calls * 1e6)
                return slices[state][-1]

            found.append(list(run_rounds(tuple(sources), rounds, measure)))
    least = {state: min(taken) for state, taken in slices.items()}
    return ProcessorTime(least, compare_starts(found, "on", "off"), compare_starts(found, "control", "off"))


def start_server(stack: ExitStack, kind: str, which: str, source: Path, layout: int) -> subprocess.Popen[str]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    command = [sys.executable, "-m", "benchmarks.figures", "--serve", kind, which, folder, str(layout)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    part = stack.enter_context(subprocess.Popen(command, env=prefer_source(source), **pipes))
    stack.callback(part.terminate)
    ask(part, 200)  # warm
    return part


def ask(part: subprocess.Popen[str], calls: int) -> float:
    assert part.stdin is not None
    assert part.stdout is not None
    part.stdin.write(f"{calls}\n")
    part.stdin.flush()
    return float(part.stdout.readline())


def serve(kind: str, which: str, folder: str, layout: int) -> None:
    """Do so many requests for each line that comes in, and say how long they took."""
    shift_layout(layout)
    app, numbers = build_app(kind, f"sqlite:///{folder}/figures.db"), count()

    async def loop() -> None:
        for line in sys.stdin:  # nothing else runs on this loop
            print(await drive(app, which, int(line), numbers), flush=True)

    asyncio.run(loop())


def describe(found: Sequence[dict[str, float]]) -> str:
    """The mean and the standard deviation of what figures add, over the layouts."""
    costs, without = [each["on"] - each["off"] for each in found], mean(each["off"] for each in found)
    spread = stdev(costs) if len(costs) > 1 else 0.0
    shares = (f"{100 * part / without:.2f} %" for part in (mean(costs), spread))
    return (
        f"{without:,.0f} instructions without figures, they add {mean(costs):,.0f} +- {spread:,.0f} "
        f"({' +- '.join(shares)}) in {len(costs)} layouts"
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="requests in a slice of a round (200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of processor time of each start (5)")
    parser.add_argument("--starts", type=int, default=9, help="how often the processes are started anew (9)")
    parser.add_argument("--layouts", type=int, default=5, help="in how many layouts instructions are counted (5)")
    parser.add_argument("--counts", type=int, default=1, help="counts of each state and layout (1; busy: 3)")
    parser.add_argument("--no-valgrind", action="store_true", help="only processor time")
    parser.add_argument(
        "--store", choices=("sqlite", "memory"), default="sqlite",
        help="where instructions are counted; in memory no thread of a store takes part, so counts of two runs "
        "hardly differ. Processor time is always measured on SQLite (sqlite)",
    )  # fmt: skip
    parser.add_argument("cases", nargs="*", help="which: asgi-new asgi-replay fastapi-new fastapi-replay (all)")
    parser.add_argument("--no-processor", action="store_true", help="only instructions")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return run_child(*given.child[:3], layout=int(given.child[3]))
    if given.serve:
        return serve(*given.serve[:3], layout=int(given.serve[3]))
    with tempfile.TemporaryDirectory() as folder:
        sources = {"on": Path(folder, "on"), "off": Path(folder, "off")}
        copy_library(sources["on"])
        copy_library(sources["off"])
        write_anew(sources["on"], ast.NodeTransformer())
        print(f"{take_figures_out(sources['off'])} statements were taken out", flush=True)
        for kind, which in CASES:
            if given.cases and f"{kind}-{which}" not in given.cases:
                continue
            if not given.no_processor:
                taken = measure_processor(kind, which, sources, given.calls, given.rounds, given.starts)
                print(f"{kind} {which}, processor: {taken}", flush=True)
            if not given.no_valgrind:
                counted = [
                    count_instructions(kind, which, sources, given.store, given.counts, layout)
                    for layout in range(given.layouts)
                ]
                print(f"{kind} {which}: {describe(counted)}", flush=True)
    return None


if __name__ == "__main__":
    main()
