"""The process in which command_times.py runs commands: `serve URL` runs what it is asked for, `prepare URL RUNS` puts
the open work into the store. A file of its own, because it imports nothing large: its memory is that of the
commands."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.command_list import Command, forget_app, list_commands, prepare, submit_runs
from retrysafe.cli.exits import DONE, OUT_OF_REACH
from retrysafe.cli.main import main


class Run(NamedTuple):
    """What one run took."""

    seconds: float
    processor: float
    """CPU seconds of this process."""
    kilobytes: int
    """The most memory that it held."""


def serve(url: str) -> None:
    """Run what each line asks for. What commands print goes nowhere, and their notes with it unless one fails."""
    commands, answers = list_commands(), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        number, first, runs = json.loads(line)
        found = [run_once(url, commands[number], run) for run in range(first, first + runs)]
        print(json.dumps(found), file=answers, flush=True)


def run_once(url: str, command: Command, run: int) -> Run:
    if command.submits:
        submit_runs(url, [f"late-{run}"])
    forget_app()
    words = command.build_words(url, run)
    with keep_notes() as notes:
        reset_peak()
        began, spent = time.perf_counter(), time.process_time()
        try:
            code = main(words)
        except SystemExit as ended:  # --help
            code = int(ended.code or 0)
        took = Run(time.perf_counter() - began, time.process_time() - spent, read_peak())
    if code == OUT_OF_REACH or "usage:" in notes() or (command.acts and code != DONE):
        raise RuntimeError(f"{words} ended with {code}: {notes()}")
    return took


@contextmanager
def keep_notes() -> Iterator[Callable[[], str]]:
    """Keep what is written to stderr."""
    before, kept = sys.stderr, io.StringIO()
    sys.stderr = kept
    try:
        yield kept.getvalue
    finally:
        sys.stderr = before


def reset_peak() -> None:
    """From now on the most memory of this process is counted from zero."""
    Path("/proc/self/clear_refs").write_text("5")


def read_peak() -> int:
    """The most memory since then, in kilobytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        prepare(sys.argv[2], int(sys.argv[3]))
