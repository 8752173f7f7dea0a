"""Run tests many times under load, to find tests that fail by chance: they fail when the machine is busy.

    python tools/steady.py --runs 50 --load 8               the tests of Redis' connections
    python tools/steady.py --suite --runs 3 --load 4        everything
    python tools/steady.py --runs 50 --load 8 --at-once 4   four runs in parallel, which are part of the load

Each run writes one line to `steady.jsonl` when it ends. A second call continues: lines of the same commit, tests and
load count. Prints the times. Exits with 1 if any run failed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CONNECTIONS = (
    "tests/stores/test_redis_pipe.py",
    "tests/stores/test_redis_server.py",
    "tests/stores/test_redis_tls.py",
    "tests/stores/test_redis_connections.py",
    "tests/faults/test_cancellation.py",
    *("-k", "redis or valkey"),
)
SUITE = ("-n", "2", "--dist", "loadgroup")
LOAD_PROGRAM = "while True: pass"
MAX_OUTPUT_LINES = 40
"""How many of the last lines of a failed run are kept."""

Note = dict[str, Any]


class Plan(NamedTuple):
    """Which tests to run, how often, and under which load."""

    tests: tuple[str, ...]
    load: int
    runs: int
    commit: str
    timeout: float

    def includes(self, note: Note) -> bool:
        wanted = (list(self.tests), self.load, self.commit)
        return (note.get("tests"), note.get("load"), note.get("commit")) == wanted


def read_notes(file: Path) -> list[Note]:
    """Read the notes. A line that is incomplete, because the machine stopped, is skipped."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def count_remaining_runs(plan: Plan, recorded: Sequence[Note]) -> int:
    return max(0, plan.runs - sum(map(plan.includes, recorded)))


def format_summary(plan: Plan, recorded: Sequence[Note]) -> str:
    """One line for all runs, and one for each run that failed."""
    done = [note for note in recorded if plan.includes(note)]
    failed = [note for note in done if not note["ok"]]
    times = [note["seconds"] for note in done]
    lines = [f"{len(done)} of {plan.runs} runs under a load of {plan.load}: {len(failed)} failed"]
    if times:
        lines[0] += f"; {min(times):.0f} to {max(times):.0f} s, half of them within {statistics.median(times):.0f} s"
    lines.extend(f"  {', '.join(note['failed']) or 'no test by name'}: {note['output']}" for note in failed)
    return "\n".join(lines)


@contextmanager
def run_load(number: int) -> Iterator[list[int]]:
    """Start that many processes that use all of a core, and end them by their ids."""
    started = [subprocess.Popen([sys.executable, "-c", LOAD_PROGRAM]) for _ in range(number)]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()


def run_tests(plan: Plan) -> Note:
    """Run the tests once. A timeout is a failure too."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *plan.tests]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=plan.timeout)
        code, text = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        code, text = -1, f"{output.decode(errors='replace')}\nnot finished after {plan.timeout:g} s"
    return {
        "tests": list(plan.tests),
        "load": plan.load,
        "commit": plan.commit,
        "ok": code == 0,
        "seconds": round(time.monotonic() - started, 1),
        "failed": sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE))),
        "output": "" if code == 0 else "\n".join(text.splitlines()[-MAX_OUTPUT_LINES:]),
    }


def run_campaign(plan: Plan, file: Path, within: float, at_once: int = 1) -> list[Note]:
    """Run what remains, or as many runs as can begin within `within` seconds. Parallel runs are part of the load of
    each other."""
    deadline = time.monotonic() + within
    writing = threading.Lock()

    def run_one(number: int) -> None:
        if time.monotonic() > deadline:
            return
        note = run_tests(plan)
        with writing:
            with file.open("a") as out:
                out.write(json.dumps(note) + "\n")
            print(f"{number}: {'ok' if note['ok'] else note['failed']} in {note['seconds']} s", flush=True)

    with run_load(max(0, plan.load - (at_once - 1))), ThreadPoolExecutor(at_once) as threads:
        list(threads.map(run_one, range(1, count_remaining_runs(plan, read_notes(file)) + 1)))
    return read_notes(file)


def describe_commit() -> str:
    """The commit that is tested. `-dirty` means uncommitted changes."""
    result = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--load", type=int, default=8, help="processes that keep the machine busy")
    parser.add_argument("--suite", action="store_true", help="run the whole suite")
    parser.add_argument("--at-once", type=int, default=1, help="runs in parallel; they are part of the load")
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds for one run")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no run after this many seconds")
    parser.add_argument("--notes", type=Path, default=ROOT / "steady.jsonl")
    parser.add_argument("tests", nargs="*", help="other tests, as arguments of pytest")
    args = parser.parse_args(arguments)
    tests = tuple(args.tests) or (SUITE if args.suite else CONNECTIONS)
    plan = Plan(tests, args.load, args.runs, describe_commit(), args.timeout)
    recorded = run_campaign(plan, args.notes, args.within, args.at_once)
    print(format_summary(plan, recorded))
    return int(any(plan.includes(note) and not note["ok"] for note in recorded))


if __name__ == "__main__":
    sys.exit(main())
