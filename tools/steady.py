"""Run tests again and again beside a load: a suite that fails by chance does so when the machine is busy.

    python tools/steady.py --runs 50 --load 8               the tests of Redis' connections
    python tools/steady.py --suite --runs 3 --load 4        everything
    python tools/steady.py --runs 50 --load 8 --at-once 4   four runs side by side are load to each other

Each run is noted as a line of `steady.jsonl` when it ends. Called again it goes on where it was stopped: what was noted
for the same commit, the same tests and the same load counts. Prints the times, and ends with 1 if any run failed.
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
BUSY = "while True: pass"
LINES = 40
"""Of what a failed run said, that many are kept."""

Note = dict[str, Any]


class Plan(NamedTuple):
    """What is to be run, how often, beside what."""

    tests: tuple[str, ...]
    load: int
    runs: int
    commit: str
    timeout: float

    def is_of(self, note: Note) -> bool:
        asked = (list(self.tests), self.load, self.commit)
        return (note.get("tests"), note.get("load"), note.get("commit")) == asked


def notes(file: Path) -> list[Note]:
    """A line that was cut off by the end of the machine is none."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def left(plan: Plan, noted: Sequence[Note]) -> int:
    return max(0, plan.runs - sum(map(plan.is_of, noted)))


def summary(plan: Plan, noted: Sequence[Note]) -> str:
    """One line for a page, and one for each run that failed."""
    done = [note for note in noted if plan.is_of(note)]
    failed = [note for note in done if not note["ok"]]
    times = [note["seconds"] for note in done]
    lines = [f"{len(done)} of {plan.runs} runs beside a load of {plan.load}: {len(failed)} failed"]
    if times:
        lines[0] += f"; {min(times):.0f} to {max(times):.0f} s, half of them within {statistics.median(times):.0f} s"
    lines.extend(f"  {', '.join(note['failed']) or 'no test by name'}: {note['said']}" for note in failed)
    return "\n".join(lines)


@contextmanager
def busy(number: int) -> Iterator[list[int]]:
    """So many processes that do nothing but count; ended by their ids."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()


def once(plan: Plan) -> Note:
    """One run. That it took too long is a failure, too."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *plan.tests]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=plan.timeout)
        code, text = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        code, text = -1, f"{said.decode(errors='replace')}\nnot over after {plan.timeout:g} s"
    return {
        "tests": list(plan.tests),
        "load": plan.load,
        "commit": plan.commit,
        "ok": code == 0,
        "seconds": round(time.monotonic() - began, 1),
        "failed": sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE))),
        "said": "" if code == 0 else "\n".join(text.splitlines()[-LINES:]),
    }


def campaign(plan: Plan, file: Path, within: float, at_once: int = 1) -> list[Note]:
    """All that is left, or as much as may begin within so many seconds. Of the load of a run, the others that run
    beside it are a part."""
    deadline = time.monotonic() + within
    writing = threading.Lock()

    def run_one(number: int) -> None:
        if time.monotonic() > deadline:
            return
        note = once(plan)
        with writing:
            with file.open("a") as out:
                out.write(json.dumps(note) + "\n")
            print(f"{number}: {'ok' if note['ok'] else note['failed']} in {note['seconds']} s", flush=True)

    with busy(max(0, plan.load - (at_once - 1))), ThreadPoolExecutor(at_once) as threads:
        list(threads.map(run_one, range(1, left(plan, notes(file)) + 1)))
    return notes(file)


def commit() -> str:
    """Of what is tested; changes that are not committed are said."""
    said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--load", type=int, default=8, help="processes that keep the machine busy meanwhile")
    parser.add_argument("--suite", action="store_true", help="the whole suite instead")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side; each is a part of the others' load")
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds for one run")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds in which runs may begin")
    parser.add_argument("--notes", type=Path, default=ROOT / "steady.jsonl")
    parser.add_argument("tests", nargs="*", help="other tests, as pytest is told them")
    asked = parser.parse_args(given)
    tests = tuple(asked.tests) or (SUITE if asked.suite else CONNECTIONS)
    plan = Plan(tests, asked.load, asked.runs, commit(), asked.timeout)
    noted = campaign(plan, asked.notes, asked.within, asked.at_once)
    print(summary(plan, noted))
    return int(any(plan.is_of(note) and not note["ok"] for note in noted))


if __name__ == "__main__":
    sys.exit(main())
