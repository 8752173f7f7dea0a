"""What the figures cost a request: `python -m benchmarks.figures [--calls N] [--rounds N] [--no-valgrind]`.

Calls the FastAPI application of the web part in process, without sockets, on an SQLite file: with the figures as they
are, and with every call that counts or measures replaced by one that does nothing. The calls themselves cannot be taken
away, so what an empty call costs is added: `off` is what it would be without them.

Two measures. Instructions are counted by valgrind (callgrind), in a process of its own for each case: the difference
between a long and a short run, so that start and set-up fall out. They do not depend on what else the machine does.
Processor time is taken in rounds that alternate between on and off; the median of the differences counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from itertools import count
from typing import Any

from benchmarks.apps.fastapi_app import KINDS
from benchmarks.profiling import call
from retrysafe.engine.events import Events
from retrysafe.engine.figures import Figures

CASES = (("ours", "new"), ("ours", "replay"), ("ours-edge", "new"), ("ours-edge", "replay"))
SHORT, LONG = 50, 250
COUNTING = ("count", "begin_execution", "end_execution", "observe_store")
COLLECTED = re.compile(r"Collected : (\d+)")


class Calls:
    """How many calls were made to what counts."""

    made = 0


def silence() -> None:
    """Replace what counts and measures by calls that do nothing."""

    def nothing(self: Any, *given: Any) -> float:
        Calls.made += 1
        return 0.0

    for name in COUNTING:
        setattr(Figures, name, nothing)
    Events.emit = nothing  # type: ignore[assignment,method-assign]
    Events.emit_grant = nothing  # type: ignore[assignment,method-assign]


async def drive(app: Any, which: str, calls: int, numbers: Any) -> float:
    """Seconds of processor for so many requests."""
    began = time.process_time()
    for _ in range(calls):
        status = await call(app, "replayed" if which == "replay" else f"key-{next(numbers)}")
        assert status == 201, f"answered {status}"
    return time.process_time() - began


def run_child(kind: str, which: str, state: str, calls: int) -> None:
    """What valgrind watches."""
    if state == "off":
        silence()
    with tempfile.TemporaryDirectory() as folder:
        app = KINDS[kind](f"sqlite:///{folder}/figures.db")

        async def all_of_it() -> None:
            await drive(app, which, 5, numbers := count())
            await drive(app, which, calls, numbers)

        asyncio.run(all_of_it())
    print(Calls.made)


def count_instructions(kind: str, which: str, state: str) -> tuple[float, float]:
    """Instructions of one request, and calls of what counts."""
    found = [measure_child(kind, which, state, calls) for calls in (SHORT, LONG)]
    (few, made_few), (many, made_many) = found
    return (many - few) / (LONG - SHORT), (made_many - made_few) / (LONG - SHORT)


def measure_child(kind: str, which: str, state: str, calls: int) -> tuple[int, int]:
    watch = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    child = [sys.executable, "-m", "benchmarks.figures", "--child", kind, which, state, str(calls)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([*watch, *child], check=True, capture_output=True, text=True, env=environment)
    found = COLLECTED.search(done.stderr)
    assert found is not None, done.stderr[-2000:]
    return int(found.group(1)), int(done.stdout)


def measure_processor(kind: str, which: str, calls: int, rounds: int) -> tuple[float, float]:
    """Microseconds of one request with figures, and the median of what they add."""
    parts = {}
    for state in ("on", "off"):
        with tempfile.TemporaryDirectory() as folder:
            parts[state] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.figures", "--serve", kind, which, state, folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            ask(parts[state], 200)  # warm, and the file is open before its folder goes
    taken: dict[str, list[float]] = {"on": [], "off": []}
    for number in range(rounds):
        for state in ("on", "off") if number % 2 else ("off", "on"):
            taken[state].append(ask(parts[state], calls) / calls * 1e6)
    for part in parts.values():
        assert part.stdin is not None
        part.stdin.close()
        part.wait()
    added = statistics.median(on - off for on, off in zip(taken["on"], taken["off"], strict=True))
    return statistics.median(taken["off"]), added


def ask(part: subprocess.Popen[str], calls: int) -> float:
    assert part.stdin is not None
    assert part.stdout is not None
    part.stdin.write(f"{calls}\n")
    part.stdin.flush()
    return float(part.stdout.readline())


def serve(kind: str, which: str, state: str, folder: str) -> None:
    """Do so many requests for each line that comes in, and say how long they took."""
    if state == "off":
        silence()
    app, numbers = KINDS[kind](f"sqlite:///{folder}/figures.db"), count()

    async def loop() -> None:
        for line in sys.stdin:  # nothing else runs on this loop
            print(await drive(app, which, int(line), numbers), flush=True)

    asyncio.run(loop())


def empty_call_micros() -> float:
    class Empty:
        def nothing(self, *given: Any) -> float:
            return 0.0

    number = 200_000
    best = min(timeit.repeat("e.nothing('a', 'b', 'c')", globals={"e": Empty()}, number=number, repeat=5))
    return best / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="requests in a round (200)")
    parser.add_argument("--rounds", type=int, default=31, help="rounds of processor time (31)")
    parser.add_argument("--no-valgrind", action="store_true", help="only processor time")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return run_child(*given.child[:3], int(given.child[3]))
    if given.serve:
        return serve(*given.serve)
    watched = shutil.which("valgrind") is not None and not given.no_valgrind
    print(f"an empty call: {empty_call_micros():.3f} us")
    for kind, which in CASES:
        off, added = measure_processor(kind, which, given.calls, given.rounds)
        line = (
            f"{kind:<10} {which:<7} {off:7.1f} us of processor, figures add {added:5.2f} us ({100 * added / off:.2f} %)"
        )
        if watched:
            on_count, _ = count_instructions(kind, which, "on")
            off_count, made = count_instructions(kind, which, "off")
            share = 100 * (on_count - off_count) / off_count
            line += f"; {off_count:,.0f} instructions, figures add {on_count - off_count:,.0f} ({share:.2f} %)"
            line += f", in {made:.0f} calls"
        print(line, flush=True)
    return None


if __name__ == "__main__":
    main()
