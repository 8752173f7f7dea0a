"""`retrysafe worker module:safe`: run the worker until a signal stops it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any

from retrysafe.cli.exits import DONE, OUT_OF_REACH, REFUSED
from retrysafe.cli.import_object import load_safe
from retrysafe.cli.session import quiet_drivers
from retrysafe.cli.settings import require_app
from retrysafe.engine.resume_times import GRACE_SECONDS
from retrysafe.errors import UsageError
from retrysafe.policy import DEFAULT_LEASE_SECONDS
from retrysafe.worker.health import Health, plain_count
from retrysafe.worker.service import TICK_SECONDS, Worker
from retrysafe.worker.status import TickResult

EXIT_UNHEALTHY = REFUSED


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "worker",
        help="finish abandoned operations, publish staged jobs, delete expired records",
        description="Runs these services side by side: completer (resumes abandoned operations), sweeper (settles "
        "guards whose lease lapsed), enqueuer (publishes staged jobs, each topic on its own), reaper (deletes expired "
        "records), receipts (deletes those of finished operations). Each runs when there is work, and at every tick. "
        "Any number of workers may run on one store. Each worker touches only its application's namespace. SIGTERM "
        "and SIGINT stop it after the current work.",
        takes_app=0,
        examples=("retrysafe worker myapp:safe --health 127.0.0.1:8081", "retrysafe worker myapp:safe --once --json"),
    )
    parser.add_argument(
        "--tick",
        type=float,
        default=TICK_SECONDS,
        metavar="S",
        help=f"seconds between two ticks ({TICK_SECONDS:.0f})",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        metavar="S",
        help=f"seconds to leave for the client's own retry ({GRACE_SECONDS:.0f})",
    )
    parser.add_argument(
        "--job-lease",
        type=float,
        default=DEFAULT_LEASE_SECONDS,
        metavar="S",
        help=f"seconds until another worker takes over the jobs of a dead worker ({DEFAULT_LEASE_SECONDS:.0f}); "
        "make it longer than any delivery takes",
    )
    parser.add_argument("--once", action="store_true", help="run each service once and exit; for cron")
    parser.add_argument(
        "--health",
        metavar="HOST:PORT",
        help="serve 200 or 503, with recent activity as JSON; /metrics has the figures, for Prometheus",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.tick > 0 or not args.grace >= 0 or not args.job_lease > 0:
        raise UsageError(
            f"--tick {args.tick} --grace {args.grace} --job-lease {args.job_lease}: give a tick and a lease above "
            "zero, and a grace of zero or more"
        )
    quiet_drivers()
    safe = load_safe(require_app(args))
    worker = Worker(safe, tick=args.tick, grace=args.grace, job_lease=args.job_lease)
    health = Health(worker, args.health) if args.health else None

    def report(done: TickResult) -> None:
        print(format_tick(done, as_json=args.json), flush=True)

    try:
        if args.once:
            done = worker.run_once()
            report(done)
            return OUT_OF_REACH if done.out_of_reach else DONE if done.healthy else EXIT_UNHEALTHY
        stop_on_signals(worker)
        print_banner(safe.operations, safe.publishers, worker, health)
        worker.run(report)
        print("stopped", file=sys.stderr)
        return 0
    finally:
        if health is not None:
            health.close()
        safe.close()


def stop_on_signals(worker: Worker) -> None:
    def stop(number: int, frame: Any) -> None:
        if worker.stopping:  # second signal: stop at once, without waiting for the current work
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        print(f"{signal.Signals(number).name}: stopping after the current work", file=sys.stderr)
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def print_banner(operations: Any, publishers: Any, worker: Worker, health: Health | None) -> None:
    """Printed on stderr: stdout carries only the reports."""
    known = ", ".join(sorted(operations)) or "none"
    topics = ", ".join(sorted(publishers)) or "none"
    where = f"; health on http://{health.address}" if health is not None else ""
    print(f"worker: namespace {worker.safe.namespace!r}, a tick every {worker.tick:g} s{where}", file=sys.stderr)
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
