"""Enqueue a Celery job that kills its process, let a worker at it, and say what became of it, as one line of JSON.

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

PATIENCE = 300.0
KEY = "charge-7"


def main() -> dict[str, object]:
    deadly.jobs.safe.migrate()
    deadly.jobs.enqueue(deadly.charge, ("o-7",), key=KEY)
    broker = Redis.from_url(os.environ["DEADLY_BROKER"])
    worker = subprocess.Popen([sys.executable, *deadly.COMMAND], start_new_session=True, stdout=sys.stderr)
    try:
        until(lambda: deadly.jobs.state(KEY) == "unknown", PATIENCE, "the last attempt")
        # Delivered once more it is refused, and that is an end: nothing waits in the queue or for an acknowledgement.
        until(lambda: not broker.llen("deadly") and not broker.hlen("unacked"), PATIENCE, "the queue to be empty")
        runs = len(Path(f"{deadly.DATABASE}.runs").read_text().splitlines())
        return {"runs": runs, "state": deadly.jobs.state(KEY), "alive": worker.poll() is None}
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
    os._exit(0)  # Celery keeps threads
