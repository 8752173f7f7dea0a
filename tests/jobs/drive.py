"""Many jobs, enqueued twice, while their workers are killed.

    python -m tests.jobs.drive on_celery JOBS KILLS WORKERS SEED

Prints one line of JSON with the counts. A kill follows progress, not time, so that on a slow machine too it hits the
middle of the work. A job that the queue did not deliver again by itself is enqueued again, with the same key.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from retrysafe.core.ops import Stats
from tests.jobs.apps import world

STALL_SECONDS, START_SECONDS = 4.0, 30.0
"""Seconds without progress after which missing jobs are enqueued again. An extra message does no harm."""
TIMEOUT_SECONDS = 1500.0


class Workers:
    """The worker processes of one application. Each is killed with all its children: RQ's children have their own
    process group."""

    def __init__(self, command: list[str], count: int) -> None:
        self._command = [sys.executable, *command]
        self._running = [self._started() for _ in range(count)]
        self.killed = 0

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)

    def kill_one(self, choose: random.Random) -> None:
        victim = choose.randrange(len(self._running))
        end(self._running[victim])
        self.killed += 1
        self._running[victim] = self._started()

    def stop(self) -> None:
        for process in self._running:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    for pid in (process.pid, *descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children that were started meanwhile
    process.wait()


def descendants(pid: int) -> list[int]:
    """A process's children, and their children."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                found += [child, *descendants(child)]
    return found


def done() -> int:
    return world.safe.execute(Stats()).completed


def kill_workers(workers: Workers, jobs: int, count: int, choose: random.Random, over: threading.Event) -> None:
    """Kill one worker each time another share of the jobs is done."""
    for number in range(1, count + 1):
        while done() < jobs * number // (count + 1) and not over.is_set():
            time.sleep(0.05)
        workers.kill_one(choose)


def wait_for_all(app: Any, jobs: int, deadline: float) -> int:
    """Wait until all jobs are done. Returns how many had to be enqueued once more."""
    again, last, since = 0, -1, time.monotonic()
    while (now_done := done()) < jobs:
        assert time.monotonic() < deadline, f"only {now_done} of {jobs} were done in time"
        if now_done != last:
            last, since = now_done, time.monotonic()
        elif time.monotonic() - since > (STALL_SECONDS if now_done else START_SECONDS):
            again += sum(enqueue(app, n, resend_after=0.0).sent for n in range(jobs))
            since = time.monotonic()
        time.sleep(0.2)
    return again


def enqueue(app: Any, n: int, **options: Any) -> Any:
    task = app.enter if n % 2 else app.charge
    return app.jobs.enqueue(task, (n,), key=f"job-{n}", **options)


def counted(query: str) -> list[tuple[Any, ...]]:
    with world.connect() as connection:
        return connection.execute(query).fetchall()


def main(name: str, jobs: int, kill: int, crew: int, seed: int) -> dict[str, Any]:
    world.migrate()
    app = importlib.import_module(f"tests.jobs.apps.{name}")
    if hasattr(app, "prepare"):
        app.prepare()
    choose, over, deadline = random.Random(seed), threading.Event(), time.monotonic() + TIMEOUT_SECONDS
    began = time.monotonic()
    first = [enqueue(app, n) for n in range(jobs)]
    workers = Workers(app.COMMAND, crew)
    killer = threading.Thread(target=kill_workers, args=(workers, jobs, kill, choose, over), daemon=True)
    try:
        killer.start()
        second = [enqueue(app, n) for n in range(jobs)]
        again = wait_for_all(app, jobs, deadline)
    finally:
        over.set()  # after a failure too, so that the killing thread does not wait for progress
        killer.join()
        workers.stop()
    third = [enqueue(app, n) for n in range(jobs)]
    tokens: dict[Any, Any] = dict(counted("SELECT n, token FROM effects UNION ALL SELECT n, token FROM charges"))
    return {
        "jobs": jobs,
        "sent_first": sum(enqueued.sent for enqueued in first),
        "sent_by_second": sum(enqueued.sent for enqueued in second),
        "enqueued_again": again,
        "killed": workers.killed,
        "rows": counted("SELECT count(*) FROM effects")[0][0],
        "charges": counted("SELECT count(*) FROM charges")[0][0],
        "calls": counted("SELECT count(*) FROM calls")[0][0],
        "done": sum(enqueued.state == "done" and not enqueued.sent for enqueued in third),
        "first_results": sum(enqueued.result == {"n": n, "token": tokens.get(n)} for n, enqueued in enumerate(third)),
        "kept": sum(app.jobs.result(f"job-{n}") == enqueued.result for n, enqueued in enumerate(third)),
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:6]))), flush=True)
    os._exit(0)  # clients of queues keep threads
