"""Workers that are killed at random and started again, over many operations and their jobs.

    python -m tests.worker.chaos ORDERS KILLS SEED

Prints one line of JSON. The application is tests/worker/app.py, in the places the environment names.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable

from retrysafe.core.jobs import ListJobs
from retrysafe.core.ops import Stats
from retrysafe.worker.completer import Completer
from retrysafe.worker.enqueuer import Enqueuer
from tests.worker import app

WORKERS = 3
JOB_LEASE = 1.0
PATIENCE = 600.0
AT_ONCE = 3
"""Operations before the jobs have their turn: a worker lives for less than a second, and is to die in both."""


def work() -> None:
    """A worker, until it is killed. It waits only after an idle round."""
    completer = Completer(app.safe, grace=0, backoff=lambda attempt: 0.1)
    enqueuer = Enqueuer(app.safe, app.safe.publishers, lease=JOB_LEASE, batch=10)
    while True:
        done, sent = completer.run_once(after(AT_ONCE)), enqueuer.run_once()
        if not done.finished and not sent.published:
            time.sleep(0.05)


def after(calls: int) -> Callable[[], bool]:
    """False so many times, then true."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def fork() -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def main(orders: int, kills: int, seed: int) -> None:
    choose = random.Random(seed)
    for number in range(orders):
        app.order(f"item-{number}", key=f"order-{number}")
    app.safe.close()  # what is open must not be shared with children
    workers = [fork() for _ in range(WORKERS)]
    began = time.monotonic()
    killed = 0
    for _ in range(kills):
        time.sleep(choose.uniform(0.01, 0.25))
        which = choose.randrange(WORKERS)
        os.kill(workers[which], signal.SIGKILL)
        _, status = os.waitpid(workers[which], 0)
        killed += os.WIFSIGNALED(status)
        workers[which] = fork()
    faults = time.monotonic()
    left = waited(orders)
    ended = time.monotonic()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    told = {
        "killed": killed,
        "left": left,
        "seconds_with_faults": round(faults - began, 2),
        "seconds_after_faults": round(ended - faults, 2),
    }
    print(json.dumps(told), flush=True)


def waited(orders: int) -> int:
    """How much is still undone when all should long be done: nothing."""
    until = time.monotonic() + PATIENCE
    while True:
        done = app.safe.execute(Stats()).completed
        left = (orders - done) + len(app.safe.execute(ListJobs(limit=1000)))
        if not left or time.monotonic() > until:
            app.safe.close()
            return left
        time.sleep(0.05)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
