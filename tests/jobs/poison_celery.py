"""Enqueue a Celery job that kills its process, start a worker, and print the outcome as one line of JSON.

DEADLY_DATABASE=… DEADLY_BROKER=… python -m tests.jobs.poison_celery
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from redis import Redis

from tests.jobs.apps import deadly_celery as deadly
from tests.waiting import until

TIMEOUT_SECONDS = 300.0
KEY = "charge-7"


def main() -> dict[str, object]:
    deadly.jobs.safe.migrate()
    deadly.jobs.enqueue(deadly.charge, ("o-7",), key=KEY)
    broker = Redis.from_url(os.environ["DEADLY_BROKER"])
    worker = subprocess.Popen([sys.executable, *deadly.COMMAND], start_new_session=True, stdout=sys.stderr)
    try:
        until(lambda: deadly.jobs.state(KEY) == "unknown", TIMEOUT_SECONDS, "the last attempt")
        # A further delivery is refused and acknowledged: nothing is left in the queue or unacknowledged.
        until(
            lambda: not broker.llen("deadly") and not broker.hlen("unacked"), TIMEOUT_SECONDS, "the queue to be empty"
        )
        runs = len(Path(f"{deadly.DATABASE}.runs").read_text().splitlines())
        return {"runs": runs, "state": deadly.jobs.state(KEY), "alive": worker.poll() is None}
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    os._exit(0)  # Celery keeps threads
