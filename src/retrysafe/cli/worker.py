"""`retrysafe worker module:safe`: finishes what others began, until it is told to stop."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any

from retrysafe.cli.import_object import load_safe
from retrysafe.errors import UsageError
from retrysafe.worker.completer import GRACE_SECONDS
from retrysafe.worker.enqueuer import LEASE_SECONDS
from retrysafe.worker.health import Health, plain_count
from retrysafe.worker.service import TICK_SECONDS, Worker
from retrysafe.worker.status import TickResult

EXIT_UNHEALTHY = 1


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "worker",
        help="finish abandoned operations, publish staged jobs, clean up",
        description="Runs every service beside the others: completer (abandoned operations), sweeper (guards whose "
        "owner went silent), enqueuer (staged jobs, each topic in a lane of its own), reaper (expired records). Each "
        "goes round when there is work, and at every tick. Any number of workers may run on one store, and each "
        "touches only its application's namespace. SIGTERM and SIGINT stop it after what it is doing now.",
    )
    parser.add_argument("safe", metavar="MODULE:SAFE", help="your RetrySafe, with its operations and publishers")
    parser.add_argument(
        "--tick",
        type=float,
        default=TICK_SECONDS,
        metavar="S",
        help=f"seconds between rounds that nothing wakes ({TICK_SECONDS:.0f})",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        metavar="S",
        help=f"seconds left to a client's own retry ({GRACE_SECONDS:.0f})",
    )
    parser.add_argument(
        "--job-lease",
        type=float,
        default=LEASE_SECONDS,
        metavar="S",
        help=f"seconds until jobs that a dead worker had taken are taken by another ({LEASE_SECONDS:.0f}); "
        "longer than any delivery takes",
    )
    parser.add_argument("--once", action="store_true", help="one round of each service, then leave; for cron")
    parser.add_argument("--health", metavar="HOST:PORT", help="serve 200 or 503 and what was done lately as JSON")
    parser.add_argument("--json", action="store_true", help="one JSON object per report")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if not given.tick > 0 or not given.grace >= 0 or not given.job_lease > 0:
        raise UsageError(
            f"--tick {given.tick} --grace {given.grace} --job-lease {given.job_lease}: a tick and a lease are above "
            "zero, a grace not below it"
        )
    safe = load_safe(given.safe)
    worker = Worker(safe, tick=given.tick, grace=given.grace, job_lease=given.job_lease)
    health = Health(worker, given.health) if given.health else None

    def report(done: TickResult) -> None:
        print(format_tick(done, as_json=given.json), flush=True)

    try:
        if given.once:
            done = worker.run_once()
            report(done)
            return 0 if done.healthy else EXIT_UNHEALTHY
        stop_on_signals(worker)
        announce(safe.operations, safe.publishers, worker, health)
        worker.run(report)
        print("stopped", file=sys.stderr)
        return 0
    finally:
        if health is not None:
            health.close()
        safe.close()


def stop_on_signals(worker: Worker) -> None:
    def stop(number: int, frame: Any) -> None:
        if worker.stopping:  # asked twice: whoever asks does not want to wait
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        print(f"{signal.Signals(number).name}: stopping after what is being done now", file=sys.stderr)
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def announce(operations: Any, publishers: Any, worker: Worker, health: Health | None) -> None:
    """On stderr, so that what goes to stdout is rounds and nothing else."""
    known = ", ".join(sorted(operations)) or "none"
    topics = ", ".join(sorted(publishers)) or "none"
    where = f"; health on http://{health.address}" if health is not None else ""
    print(f"worker: namespace {worker.safe.namespace!r}, a round every {worker.tick:g} s{where}", file=sys.stderr)
    print(f"operations: {known}; topics: {topics}", file=sys.stderr, flush=True)


def format_tick(done: TickResult, *, as_json: bool) -> str:
    counts = {name: plain_count(count) for name, count in done.counts.items()}
    if as_json:
        return json.dumps({"at": format_now(), "seconds": round(done.seconds, 3), **counts})
    parts = [f"{name} {format_count(count)}" for name, count in counts.items()]
    return f"{format_now()}  {'  ·  '.join(parts)}  ({done.seconds:.2f} s)"


def format_count(count: Any) -> str:
    if not isinstance(count, dict):
        return str(count)
    return " ".join(f"{name}={value}" for name, value in count.items())


def format_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
